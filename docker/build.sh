#!/bin/bash
# Builds the image with buildah, as root on a Debian, where no container engine runs:
#
#     docker/build.sh [--tag NAME] [--out FILE] [--work DIR]
#
# Base: Debian's own Python, made with mmdebstrap, since an image registry may be out of reach. The pinned
# wheels are fetched by pip on this machine; the build itself uses no network. A second base, for the stage that
# compiles the loops in C, has a compiler and Python's headers, of which the image gets nothing. --out writes the image for
# `docker load` and `podman load`, in Docker's format: an OCI image has no health check. --work keeps base and
# wheels for the next build.
# Needs: apt-get install --no-install-recommends buildah mmdebstrap crun
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
tag=geminga out="" work=""
while [ $# -gt 0 ]; do
    case $1 in
        --tag) tag=$2 ;;
        --out) out=$2 ;;
        --work) work=$2 ;;
        *) echo "docker/build.sh: unknown argument $1" >&2; exit 2 ;;
    esac
    shift 2
done
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/wheels"
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=chroot

make_base() { # NAME PACKAGES
    if [ -s "$work/$1.tar" ]; then
        return
    fi
    mmdebstrap --quiet --variant=minbase --include="$2" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/log/* "$1"/usr/share/zoneinfo' \
        bookworm "$work/$1.new"
    tar --numeric-owner -C "$work/$1.new" -cf "$work/$1.tar.new" --exclude='./dev/*' .
    rm -rf "$work/$1.new"
    mv "$work/$1.tar.new" "$work/$1.tar"
}
make_base base python3,python3-venv,ca-certificates,curl
make_base compiling python3,python3-venv,ca-certificates,gcc,libc6-dev,libpython3-dev
# Debian 12 has Python 3.11, built with PGO, which takes less CPU and memory than Debian 13's 3.13 (docs/packages.md).
"${PYTHON:-python3}" -m pip download --quiet --only-binary=:all: --no-deps --require-hashes --python-version 3.11 \
    --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_28_$(uname -m)" \
    --dest "$work/wheels" -r locks/run.txt -r locks/build.txt

for name in base compiling; do
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/$name.tar" / >/dev/null
    buildah commit --quiet --rm "$container" "geminga-build-$name" >/dev/null
done
buildah bud --pull-never --format docker --layers=false --build-arg BASE=localhost/geminga-build-base \
    --build-arg BUILD_BASE=localhost/geminga-build-compiling \
    --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels --volume "$work/wheels:/wheels:ro" \
    --file docker/Dockerfile --ignorefile docker/Dockerfile.dockerignore --tag "$tag" .
if [ -n "$out" ]; then
    rm -f "$out"
    buildah push --quiet "$tag" "docker-archive:$out:$tag"
    echo "$out: $(du -m --apparent-size "$out" | cut -f1) MB"
fi
