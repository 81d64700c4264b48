#!/bin/sh
# Runs in a virtual machine what the test outside has planned, DIR/plan: a line has a name, a directory and a command. What is said
# goes to the second serial line, and, with "=== vm:" before it, how each of them ended. Then the machine is switched off.
exec > /dev/ttyS1 2>&1 < /dev/null
dir=$1
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp
for name in veth bridge loop crc32c_generic ext4 quota_v2; do busybox modprobe $name || echo "=== vm: no module $name"; done
ip link set lo up
# Where networks of machines within find this one.
ip addr add 10.85.255.1/32 dev lo
up() { cut -d ' ' -f 1 /proc/uptime; }
echo "=== vm: up after $(up) s: Linux $(uname -r), $(cat /proc/1/comm)"
while read -r name at command; do
  echo "=== vm: begin $name"
  began=$(up)
  (cd "$at" && eval "$command")
  echo "=== vm: end $name $? from $began s to $(up) s"
done < "$dir/plan"
echo "=== vm: done"
busybox sync
busybox poweroff -f
