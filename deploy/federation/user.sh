#!/bin/sh
# The data user of a trial federation: makes its keys, enrols once, gives its application the bearer token, and serves.
set -eu
secrets=/run/dpdpca/secrets
application=/run/dpdpca/grant/application

if [ ! -e "$DPDPCA_USER_HOME/identity.pem" ]; then
    dpdpca user init --name "Habitat Institute" --passphrase-file "$secrets/passphrase"
fi
if [ ! -e "$DPDPCA_USER_HOME/enrolled" ]; then
    # The proxy's key is accepted unseen: here the same hands run everything. People compare the words.
    dpdpca user enrol "$PROXY_URL" --invitation-file "$secrets/invitation" --yes
    touch "$DPDPCA_USER_HOME/enrolled"
fi
install -m 0600 "$DPDPCA_USER_HOME/token" "$application/token"

exec dpdpca user serve
