#!/usr/bin/env bash
# Prints the manifest of the plugin for krew: hack/krew.sh VERSION FOLDER URL. FOLDER has the archives
# kubectl-holdfast-OS-ARCH.tar.gz, as make release packs them; URL is where they will be downloaded.
set -euo pipefail
if [ $# -ne 3 ]; then
	echo "usage: hack/krew.sh VERSION FOLDER URL" >&2
	exit 2
fi
version=$1 folder=$2 url=$3
cat <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: holdfast
spec:
  version: $version
  homepage: https://holdfast.dev
  shortDescription: Show what happens to training jobs that Holdfast keeps alive
  description: |
    Shows where the pods of a job are, what each recovery took and why, which nodes are sick, and whether the cluster
    is ready for Holdfast (doctor). Needs Holdfast in the cluster, except for doctor.
  platforms:
YAML
for os in linux darwin; do
	for arch in amd64 arm64; do
		archive=kubectl-holdfast-$os-$arch.tar.gz
		[ -f "$folder/$archive" ] || { echo "$folder/$archive is missing" >&2; exit 1; }
		sum=$(sha256sum "$folder/$archive" | cut -d' ' -f1)
		cat <<YAML
    - selector: {matchLabels: {os: $os, arch: $arch}}
      uri: $url/$archive
      sha256: $sum
      bin: kubectl-holdfast
YAML
	done
done
