#!/bin/sh
# A machine for an agent, made by the first process of mount, pid, uts and cgroup namespaces: whatever is made here goes with
# it, however it ends. Its network is joined to the host's by a pair of interfaces.
#
#   machine.sh DIR NAME NUMBER AGENT ARGUMENT...
set -e
dir=$1 name=$2 number=$3
shift 3
mount --make-rprivate /
# What it sees of cgroups begins with its own.
awk '{ for (i = 7; i <= NF; i++) if ($i == "-") { print $5, $(i+1), $NF; break } }' /proc/self/mountinfo |
while read -r at type options; do
  case $type in
  cgroup) umount "$at"; mount -t cgroup -o "${options#rw,}" none "$at" ;;
  cgroup2) umount "$at"; mount -t cgroup2 none "$at" ;;
  esac
done
# Where programs leave things under names that are always the same.
mkdir -p /var/lib/cni /var/lib/kubelet /var/log/containers
for at in /run /var/lib/cni /var/lib/kubelet /var/log/containers; do mount -t tmpfs -o mode=755 none "$at"; done
mkdir -p /run/netns
# A kubelet sets these for the whole of a machine, unless they are so already.
for said in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=$dir/$(echo "${said%=*}" | tr / -)
  echo "${said#*=}" > "$file"
  mount --bind "$file" "/proc/sys/${said%=*}"
done
mount --make-rshared /
hostname "$name"
ip netns add "$name"
ip link add "brtk$number" type veth peer name eth0 netns "$name"
ip addr add "10.87.$number.1/24" dev "brtk$number"
ip link set "brtk$number" up
on() { nsenter "--net=/run/netns/$name" "$@"; }
on ip link set lo up
on ip addr add "10.87.$number.2/24" dev eth0
on ip link set eth0 up
on ip route add default via "10.87.$number.1"
on sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
on containerd -c "$dir/config.toml" > "$dir/containerd.log" 2>&1 &
tries=0
until ctr -a "$dir/containerd.sock" version > /dev/null 2>&1; do
  tries=$((tries + 1)); [ $tries -lt 600 ]; sleep 0.1
done
ctr -a "$dir/containerd.sock" -n k8s.io images import "$dir/images.tar" > "$dir/images.log" 2>&1
on "$@" > "$dir/agent.log" 2>&1
