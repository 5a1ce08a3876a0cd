#!/usr/bin/env bash
# Tests and measures ChunkMesh on a GPU machine; a part that fails does not stop the others.
#
#   bash deploy/gpu/check.sh PART ...      from the project's root, after unpack.sh
#
# Parts: imports, tests (what needs no GPU), gpu-tests (kernels and links), model, graphs, mesh, kernels,
# layer, expert-kernels, shapes (layers of models with experts), decode (time between tokens), warm-up,
# links, tilings, scaling (SCALING="--stages 1 2 ..." changes what tests.bench.gpu_scaling measures),
# qwen3-moe and deepseek (the same for them in FP8).
# Logs and JSON go to $OUT (or ./gpu-results), a table of results comes last.
set -euo pipefail
. /tmp/chunkmesh-site/env.sh
export PYTHONPATH=$PWD:$PYTHONPATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
out=${OUT:-gpu-results}
mkdir -p "$out"
results=()

part() { # NAME SECONDS COMMAND ...
  local name=$1 seconds=$2 code=0 begin=$SECONDS
  shift 2
  echo "== $name"
  timeout --kill-after=10 "$seconds" "$@" > "$out/$name.log" 2>&1 || code=$?
  results+=("$(printf '%-14s %-10s %4d s  %s' "$name" "exit $code" $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log" | cut -c 1-100)")")
  [ "$code" = 0 ] || tail -n "${FAILURE_LINES:-25}" "$out/$name.log"
}

num_gpus=$(nvidia-smi --list-gpus | wc -l)
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for name in "$@"; do
  case $name in
    imports)
      part imports 120 python3 deploy/gpu/import_all.py ;;
    tests)
      part tests 240 python3 -m pytest -q -m "not gpu and not slow" -p no:cacheprovider \
        tests/contract tests/unit ;;
    gpu-tests)
      part gpu-tests 300 python3 -m pytest -q -m gpu -p no:cacheprovider \
        tests/gpu/test_kernels.py tests/gpu/test_expert_slots.py tests/gpu/test_libraries.py \
        tests/gpu/test_links.py ;;
    model)
      part model 500 python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu/test_model.py ;;
    graphs)
      part graphs 400 python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu/test_decode_graphs.py ;;
    mesh)
      part mesh 420 python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu/test_mesh.py ;;
    scaling)
      read -ra more <<< "${SCALING:---stages 1 2 --rounds 1}"
      part scaling 580 python3 -m tests.bench.gpu_scaling --device cuda \
        --json "$out/scaling.json" --log-dir /tmp/scaling-logs "${more[@]}"
      tar czf "$out/scaling-logs.tgz" -C /tmp scaling-logs
      cat "$out/scaling.log" ;;
    kernels)
      part kernels 300 python3 -m tests.bench.gpu_kernels --json "$out/kernels.json"
      cat "$out/kernels.log" ;;
    layer)
      part layer 200 python3 -m tests.bench.gpu_layer --json "$out/layer.json"
      cat "$out/layer.log" ;;
    decode)
      part decode 180 python3 -m tests.bench.gpu_decode --json "$out/decode.json"
      cat "$out/decode.log" ;;
    warm-up)
      part warm-up 300 python3 -m tests.bench.gpu_warm_up --json "$out/warm-up.json"
      cat "$out/warm-up.log" ;;
    expert-kernels)
      part expert-kernels 150 python3 -m tests.bench.gpu_expert_kernels \
        --json "$out/expert-kernels.json"
      cat "$out/expert-kernels.log" ;;
    shapes)
      part shapes 240 python3 -m tests.bench.gpu_shapes --limit-s 150 --json "$out/shapes.json"
      cat "$out/shapes.log" ;;
    qwen3-moe | deepseek)
      shape=qwen3-30b-a3b
      [ "$name" = deepseek ] && shape=deepseek-v3-cut
      stages=(1)
      [ "$num_gpus" -ge 2 ] && stages=(1 2)
      read -ra more <<< "${SCALING:---plans optimal fixed --fixed 8192 --rounds 1 --also 32768}"
      part "$name" 400 python3 -m tests.bench.gpu_scaling --device cuda --shape "$shape" \
        --quantization fp8 --stages "${stages[@]}" --limit-s 360 \
        --json "$out/$name.json" --log-dir "/tmp/$name-logs" "${more[@]}"
      tar czf "$out/$name-logs.tgz" -C /tmp "$name-logs"
      cat "$out/$name.log" ;;
    tilings)
      part tilings 200 python3 -m tests.bench.gpu_kernels --tilings --json "$out/tilings.json" decode
      sort -k1,7 "$out/tilings.log" | head -n 150 ;;
    links)
      part links-1 90 python3 -m tests.bench.gpu_links --devices 0,0 --json "$out/links-1.json"
      cat "$out/links-1.log"
      [ "$num_gpus" -lt 2 ] && continue
      part links-2 90 python3 -m tests.bench.gpu_links --devices 0,1 --json "$out/links-2.json"
      cat "$out/links-2.log" ;;
    *)
      echo "no part $name" >&2
      exit 2 ;;
  esac
done
printf '%s\n' "${results[@]}"
