#!/bin/bash
set -e
pulsar-admin namespaces create public/slow
pulsar-admin namespaces set-dispatch-rate public/slow -md 100 -bd 10485760 -dt 1
pulsar-admin namespaces set-publish-rate public/slow -m 100
pulsar-admin namespaces set-persistence public/slow -e 1 -w 1 -a 1 -r 0
pulsar-admin namespaces get-dispatch-rate public/slow
pulsar-admin namespaces delete public/slow
pulsar-admin namespaces policies public/slow || echo "it is gone"
