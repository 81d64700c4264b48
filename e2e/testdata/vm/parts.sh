#!/bin/sh
# Takes out of Debian's packages what virtual machines are made of, and installs nothing of it:
#
#   parts.sh DIR   (DIR/linux: a kernel with its modules; DIR/systemd, DIR/nfs, DIR/apparmor: systemd, a server and a client of nfs, and what
#                   gives the kernel profiles of AppArmor, each with what it needs and this machine lacks)
set -e
mkdir -p "$1"
cd "$1"
[ ! -e whole ] || [ ! -d nfs ] || [ ! -d apparmor ] || exit 0
rm -rf whole linux systemd nfs apparmor packages
apt-get update -q
# The kernel for clouds cannot share files.
image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
# taken PART PACKAGE...: what they need and the machine lacks, in DIR/PART.
taken() {
  part=$1
  shift
  mkdir -p packages/partial "$part"
  apt-get install -y -q --download-only --no-install-recommends -o Dir::Cache::archives="$PWD/packages" "$@"
  for file in packages/*.deb; do [ ! -e "$file" ] || dpkg-deb -x "$file" "$part"; done
  rm -rf packages
  # Packages may still know folders that are links by now.
  for at in bin sbin lib lib64; do
    if [ -d "$part/$at" ]; then
      mkdir -p "$part/usr/$at"
      cp -a "$part/$at/." "$part/usr/$at/"
      rm -r "$part/$at"
    fi
  done
}
taken systemd systemd
taken nfs nfs-kernel-server nfs-common
taken apparmor apparmor
mkdir packages linux
(cd packages && apt-get download -q "$image")
dpkg-deb -x packages/*.deb linux
busybox depmod -b linux "${image#linux-image-}"
rm -rf packages
touch whole
