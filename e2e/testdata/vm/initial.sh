#!/bin/sh
# Makes the file system that the kernel of a virtual machine begins with: busybox, the modules that lead to the machine's own file
# system, and the first program.
#
#   initial.sh MODULES RELEASE INIT DIR   (MODULES/RELEASE/modules.dep is there; DIR/initial.img is made)
set -e
modules=$1/$2 init=$3 dir=$4
to=$dir/initial/lib/modules/$2
mkdir -p "$to" "$dir/initial/dev" "$dir/initial/proc" "$dir/initial/machine" "$dir/initial/systemd" "$dir/initial/nfs" "$dir/initial/apparmor" "$dir/initial/memory" "$dir/initial/root"
cp "$(command -v busybox)" "$dir/initial/busybox"
cp "$init" "$dir/initial/init"
cp "$modules/modules.builtin" "$to/"
wanted=
for name in virtio_pci 9p 9pnet_virtio overlay; do
  grep -q "/$name\.ko" "$modules/modules.builtin" || wanted="$wanted $(grep -o "^[^:]*/$name\.ko[^:]*" "$modules/modules.dep")"
done
: > "$to/modules.dep"
while [ -n "$wanted" ]; do
  next=
  for file in $wanted; do
    [ ! -e "$to/$file" ] || continue
    mkdir -p "$to/$(dirname "$file")"
    cp "$modules/$file" "$to/$file"
    grep "^$file:" "$modules/modules.dep" >> "$to/modules.dep"
    next="$next $(grep "^$file:" "$modules/modules.dep" | cut -d : -f 2)"
  done
  wanted=$(echo $next)
done
cd "$dir/initial"
find . | busybox cpio -o -H newc > "$dir/initial.img" 2> /dev/null
