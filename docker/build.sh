#!/bin/bash
# Builds the image with buildah, as root on a Debian, where no container engine runs:
#
#     docker/build.sh [--tag NAME] [--out FILE] [--work DIR]
#
# Base: Debian's own Python, made with mmdebstrap, since an image registry may be out of reach. The pinned
# wheels are fetched by pip on this machine; the build itself uses no network. --out writes the image for
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

if [ ! -s "$work/base.tar" ]; then
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates,curl \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/log/* "$1"/usr/share/zoneinfo' \
        bookworm "$work/base.new"
    tar --numeric-owner -C "$work/base.new" -cf "$work/base.tar.new" --exclude='./dev/*' .
    rm -rf "$work/base.new"
    mv "$work/base.tar.new" "$work/base.tar"
fi
# Debian 12 has Python 3.11.
"${PYTHON:-python3}" -m pip download --quiet --only-binary=:all: --no-deps --require-hashes --python-version 3.11 \
    --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_28_$(uname -m)" \
    --dest "$work/wheels" -r locks/run.txt -r locks/build.txt

base=$(buildah from scratch)
buildah add --quiet "$base" "$work/base.tar" / >/dev/null
buildah commit --quiet --rm "$base" geminga-build-base >/dev/null
buildah bud --pull-never --format docker --layers=false --build-arg BASE=localhost/geminga-build-base \
    --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels --volume "$work/wheels:/wheels:ro" \
    --file docker/Dockerfile --ignorefile docker/Dockerfile.dockerignore --tag "$tag" .
if [ -n "$out" ]; then
    rm -f "$out"
    buildah push --quiet "$tag" "docker-archive:$out:$tag"
    echo "$out: $(du -m --apparent-size "$out" | cut -f1) MB"
fi
