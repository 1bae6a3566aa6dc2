#!/bin/sh
# PostgreSQL for the proxies alone: made at the first start, with checksums and one user, whose password comes from a file.
set -eu
umask 077
home=/var/lib/database
secrets=/run/dpdpca/secrets

if [ ! -e "$home/data" ]; then
    rm -rf "$home/new" # of a first start that was interrupted
    initdb --pgdata="$home/new" --username=dpdpca --auth=peer --encoding=UTF8 --locale=C.UTF-8 --data-checksums
    # Over the network: this user, this database, TLS and the password.
    printf '%s\n' "local all dpdpca peer" "hostssl proxy proxy all scram-sha-256" > "$home/new/pg_hba.conf"
    mkdir /tmp/first
    pg_ctl --pgdata="$home/new" --options="-c listen_addresses= -k /tmp/first" --silent --wait start
    # psql reads the password from the file: no argument and no variable of a process shows it.
    psql --host=/tmp/first --dbname=postgres --quiet --set=ON_ERROR_STOP=1 <<END
\\set password \`cat $secrets/password\`
CREATE ROLE proxy LOGIN PASSWORD :'password';
CREATE DATABASE proxy OWNER proxy ENCODING 'UTF8' TEMPLATE template0;
END
    pg_ctl --pgdata="$home/new" --silent --wait stop
    mv "$home/new" "$home/data"
fi

exec postgres -D "$home/data" -k /tmp -c listen_addresses='*' -c ssl=on -c ssl_min_protocol_version=TLSv1.3 \
    -c ssl_cert_file="$secrets/tls.pem" -c ssl_key_file="$secrets/tls.key"
