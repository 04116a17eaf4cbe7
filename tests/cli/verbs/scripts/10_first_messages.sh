#!/bin/bash
set -e
pulsar-admin topics create public/default/hello
pulsar-admin topics create-subscription public/default/hello -s first -m earliest
bin/pulsar-client produce persistent://public/default/hello -m hello,world > /dev/null
bin/pulsar-client consume persistent://public/default/hello -s first -n 2 -p Earliest | grep -o 'content:[a-z]*'
pulsar-admin topics subscriptions public/default/hello
