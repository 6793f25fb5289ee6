#!/usr/bin/env bash
# Installs a released `mitra` below a directory: bin/mitra, manual pages and completions. action.yml
# calls it; docs/ci.md.
#   install.sh RELEASE DIRECTORY     RELEASE is the URL of the directory with the release's files
set -euo pipefail

(($# == 2)) || { echo "usage: $0 RELEASE-URL DIRECTORY" >&2; exit 2; }
release=${1%/} directory=$2
fail() { echo "mitra: $*" >&2; exit 1; }

platform=$(uname --kernel-name --machine)
[[ $platform == "Linux x86_64" ]] ||
    fail "releases are for Linux on x86_64, and this is $platform: build mitra by \`cargo install --path . --locked\`"

temporary=$(mktemp --directory)
trap 'rm --recursive --force "$temporary"' EXIT
download() { curl --fail --silent --show-error --location --retry 3 --output "$temporary/$1" "$release/$1"; }

download SHA256SUMS || fail "there is no release at $release: it has no SHA256SUMS"
# The name has the version, which a release called "latest" does not tell otherwise.
line=$(grep --extended-regexp '^[0-9a-f]{64}  mitra-[0-9A-Za-z.+-]+-x86_64-linux-gnu\.tar\.gz$' "$temporary/SHA256SUMS") ||
    fail "SHA256SUMS of $release names no mitra-VERSION-x86_64-linux-gnu.tar.gz"
tarball=${line#*  }
[[ $line != *$'\n'* ]] || fail "SHA256SUMS of $release names several tarballs"
download "$tarball" || fail "cannot download $release/$tarball"
(cd "$temporary" && sha256sum --check --quiet --strict <<<"$line") ||
    fail "$release/$tarball is not the file of SHA256SUMS: download it again, or report it to the maintainers"
mkdir --parents "$directory"
tar --extract --gzip --file="$temporary/$tarball" --directory="$directory" --strip-components=1 --no-same-owner
"$directory/bin/mitra" --version || fail "$directory/bin/mitra does not start; it needs glibc 2.34 or later"
