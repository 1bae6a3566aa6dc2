#!/bin/sh
# SeaweedFS as object storage with one bucket. Only its S3 side, with TLS, leaves this container: its other parts have no login.
set -eu
umask 077
secrets=/run/dpdpca/secrets
bucket=studies

make_bucket() { # tries until the server is up; says so in a file
    until echo "s3.bucket.list" | weed shell 2>/dev/null | grep -q "^  $bucket[[:space:]]"; do
        echo "s3.bucket.create -name $bucket" | weed shell >/dev/null 2>&1 || true
        sleep 1
    done
    touch /tmp/bucket-is-there
}
rm -f /tmp/bucket-is-there
(make_bucket &) # `init` of the container waits for its end

exec weed -logtostderr=true server -dir=/var/lib/seaweedfs -ip=127.0.0.1 -ip.bind=127.0.0.1 -filer -s3 \
    -s3.ip.bind=0.0.0.0 -s3.port=8333 -s3.cert.file="$secrets/tls.pem" -s3.key.file="$secrets/tls.key" \
    -s3.config="$secrets/s3.json" -s3.autoCreateBucket=false -s3.port.iceberg=0 -s3.port.lance=0 \
    -filer.localSocket=/tmp/filer.sock -master.telemetry=false -master.volumeSizeLimitMB=1024 -volume.max=0
