#!/bin/sh
# What the parties of a trial federation would get from people: the proxy's identity, certificates, one invitation each, and a
# passphrase for the data user's keys. Runs once; a second run finds its mark and changes nothing.
set -eu
umask 077
public=/run/dpdpca/public
grant=/run/dpdpca/grant

if [ -e "$public/set-up" ]; then
    echo "this federation is set up already"
    exit 0
fi

# Everybody may read the authority's certificate. In deploy/scale.yml it is there already.
[ -e "$public/ca.pem" ] || (umask 022 && python /opt/federation/authority.py "$public" "proxy=$grant/proxy" "user=$grant/user")

dpdpca proxy init --name "Independent Relay"

invite() { # invite ROLE NAME FOLDER
    dpdpca proxy invite --role "$1" --name "$2" > "$grant/$3/invitation"
}
invite user "Habitat Institute" user
invite owner "Northern Forest Survey" owner-1
invite owner "Canyon Lakes Survey" owner-2
invite owner "Front Range Survey" owner-3

# Never another one: keys may be sealed with it.
[ -e "$grant/user/passphrase" ] || python -c 'import secrets; print(secrets.token_urlsafe(32))' > "$grant/user/passphrase"

touch "$public/set-up"
