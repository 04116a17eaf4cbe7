#!/bin/bash
# The address of the broker in front of each command, as in containers.
set -e
ADMIN="pulsar-admin --admin-url ${WEB_SERVICE_URL} --request-timeout 30"
$ADMIN clusters list
$ADMIN tenants create container -c standalone -r admin
$ADMIN namespaces create container/jobs --clusters standalone
$ADMIN namespaces set-clusters container/jobs --clusters standalone
$ADMIN namespaces get-clusters container/jobs
