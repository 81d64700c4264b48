#!/bin/sh
# Takes out of Debian's packages what virtual machines are made of, and installs nothing of it:
#
#   parts.sh DIR   (DIR/linux: a kernel with its modules; DIR/systemd: systemd, with what it needs and this machine lacks)
set -e
mkdir -p "$1/packages/partial"
cd "$1"
[ ! -e whole ] || exit 0
rm -rf linux systemd
apt-get update -q
# The kernel for clouds cannot share files.
image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
apt-get install -y -q --download-only --no-install-recommends -o Dir::Cache::archives="$PWD/packages" systemd
(cd packages && apt-get download -q "$image")
mkdir linux systemd
for file in packages/*.deb; do
  case $file in
  */linux-image-*) dpkg-deb -x "$file" linux ;;
  *) dpkg-deb -x "$file" systemd ;;
  esac
done
# Packages may still know folders that are links by now.
for at in bin sbin lib lib64; do
  if [ -d "systemd/$at" ]; then
    mkdir -p "systemd/usr/$at"
    cp -a "systemd/$at/." "systemd/usr/$at/"
    rm -r "systemd/$at"
  fi
done
busybox depmod -b linux "${image#linux-image-}"
rm -rf packages
touch whole
