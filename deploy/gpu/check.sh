#!/usr/bin/env bash
# Tests and measures ChunkMesh on a GPU machine; a part that fails does not stop the others.
#
#   bash deploy/gpu/check.sh PART ...      from the project's root, after unpack.sh
#
# Parts: imports, tests (what needs no GPU), gpu-tests (kernels and links), model, graphs, mesh, kernels, warm-kernels,
# layer, expert-kernels, shapes (layers of models with experts), decode (time between tokens), warm-up,
# links, tilings, transformers (one stage against them), scaling (SCALING="--stages 1 2 ..." changes
# what tests.bench.gpu_scaling measures), scaling-fp8 (the same in FP8, on two stages), qwen3-moe and
# deepseek (the same for them in FP8), million (a prompt of 1048576 tokens on two stages),
# cached-prefix (a prompt that comes again; CACHED="--tiers redis-1" measures less), time-shares
# (what a stage's time goes to, by a trace).
# No part gets more than what is left of LIMIT_S, if that is set: seconds for all parts together.
# Logs and JSON go to results.tgz in $OUT (or ./gpu-results) after each part; what is measured with a
# whole mesh is printed as it comes; a table of results comes last.
set -euo pipefail
. /tmp/chunkmesh-site/env.sh
export PYTHONPATH=$PWD:$PYTHONPATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
kept=${OUT:-gpu-results}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir -p "$kept"
results=()

left() { # seconds
  echo $((${LIMIT_S:-100000} - SECONDS))
}

keep() { # FILE
  if [ -n "${live:-}" ]; then tee "$1"; else cat > "$1"; fi
}

show() { # NAME, of a part that may have got no time
  [ ! -f "$out/$1.log" ] || cat "$out/$1.log"
}

bench_mesh() { # NAME SECONDS ARGUMENT ...
  local name=$1 seconds=$2
  shift 2
  [ "$seconds" -lt "$(left)" ] || seconds=$(left)
  live=1 part "$name" "$seconds" python3 -m tests.bench.gpu_scaling --device cuda \
    --limit-s $((seconds - 20)) --json "$out/$name.json" --log-dir "$out/$name-logs" "$@"
}

part() { # NAME SECONDS COMMAND ...
  local name=$1 seconds=$2 code=0 begin=$SECONDS
  shift 2
  [ "$seconds" -lt "$(left)" ] || seconds=$(left)
  if [ "$seconds" -lt 15 ]; then
    results+=("$(printf '%-14s no time' "$name")")
    return
  fi
  echo "== $name"
  timeout --kill-after=10 "$seconds" "$@" 2>&1 | keep "$out/$name.log" || code=$?
  results+=("$(printf '%-14s %-10s %4d s  %s' "$name" "exit $code" $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log" | cut -c 1-100)")")
  [ "$code" = 0 ] || tail -n "${FAILURE_LINES:-25}" "$out/$name.log"
  tar czf "$kept/results.tgz" -C "$out" . || echo "results.tgz lacks something"
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
    warm-kernels)
      part warm-kernels 400 python3 -m pytest -q -s -m gpu -p no:cacheprovider \
        tests/gpu/test_warm_kernels.py
      show warm-kernels ;;
    mesh)
      part mesh 420 python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu/test_mesh.py ;;
    scaling)
      read -ra more <<< "${SCALING:---stages 1 2 --plans optimal fixed --fixed 2048 --rounds 1 --decode}"
      bench_mesh scaling 560 "${more[@]}" ;;
    scaling-fp8)
      bench_mesh scaling-fp8 150 --stages 2 --quantization fp8 --plans optimal fixed --fixed 2048 \
        --rounds 1 ;;
    million)
      bench_mesh million 480 --stages 2 --plans optimal --fixed 2048 --rounds 1 --also 1048576 ;;
    cached-prefix)
      read -ra more <<< "${CACHED:---tiers host redis-1 redis-4}"
      live=1 part cached-prefix 300 python3 -m tests.bench.gpu_cached_prefix --limit-s 270 \
        --log-dir "$out/cached-prefix-logs" --json "$out/cached-prefix.json" "${more[@]}" ;;
    kernels)
      part kernels 300 python3 -m tests.bench.gpu_kernels --json "$out/kernels.json"
      show kernels ;;
    layer)
      part layer 200 python3 -m tests.bench.gpu_layer --json "$out/layer.json"
      show layer ;;
    transformers)
      part transformers 150 python3 -m tests.bench.gpu_against_transformers --limit-s 130 \
        --json "$out/transformers.json"
      show transformers ;;
    decode)
      part decode 180 python3 -m tests.bench.gpu_decode --json "$out/decode.json"
      show decode ;;
    warm-up)
      read -ra more <<< "${WARM_UP:---quantization fp8}"
      live=1 part warm-up 240 python3 -m tests.bench.gpu_warm_up --limit-s 220 \
        --json "$out/warm-up.json" "${more[@]}" ;;
    expert-kernels)
      part expert-kernels 150 python3 -m tests.bench.gpu_expert_kernels \
        --json "$out/expert-kernels.json"
      show expert-kernels ;;
    shapes)
      part shapes 240 python3 -m tests.bench.gpu_shapes --limit-s 150 --json "$out/shapes.json"
      show shapes ;;
    qwen3-moe | deepseek)
      shape=qwen3-30b-a3b
      [ "$name" = deepseek ] && shape=deepseek-v3-cut
      stages=(1)
      [ "$num_gpus" -ge 2 ] && stages=(1 2)
      read -ra more <<< "${SCALING:---plans optimal fixed --fixed 8192 --rounds 1 --also 32768}"
      bench_mesh "$name" 400 --shape "$shape" --quantization fp8 --stages "${stages[@]}" "${more[@]}" ;;
    time-shares)
      live=1 part time-shares 150 python3 -m tests.bench.gpu_time_shares --limit-s 130 \
        --json "$out/time-shares.json" ;;
    tilings)
      part tilings 200 python3 -m tests.bench.gpu_kernels --tilings --json "$out/tilings.json" decode
      show tilings | sort -k1,7 | head -n 150 ;;
    links)
      part links-1 90 python3 -m tests.bench.gpu_links --devices 0,0 --json "$out/links-1.json"
      show links-1
      [ "$num_gpus" -lt 2 ] && continue
      part links-2 90 python3 -m tests.bench.gpu_links --devices 0,1 --json "$out/links-2.json"
      show links-2 ;;
    *)
      echo "no part $name" >&2
      exit 2 ;;
  esac
done
printf '%s\n' "${results[@]}"
