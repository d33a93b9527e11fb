#!/bin/bash
# Builds the kernel of User Mode Linux from Debian's source package.
#   build-uml.sh PACKAGE.deb CONFIG JOBS
# Works in the current folder and leaves `linux` and `config` there. Prints make's lines.
set -euo pipefail
package=$1 config=$2 jobs=$3

# Sources of drivers that User Mode Linux never compiles are most of the tree. Their Kconfig and
# Makefiles have to stay.
mkdir source
dpkg-deb --fsys-tarfile "$package" |
  tar --extract --to-stdout --wildcards './usr/src/linux-source-*.tar.xz' |
  xz --decompress --stdout --threads=0 |
  tar --extract --directory source --strip-components=1 \
    --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/media/*.[ch]' \
    --exclude='*/drivers/net/ethernet/*.[ch]' --exclude='*/drivers/net/wireless/*.[ch]' \
    --exclude='*/drivers/staging/*.[ch]' --exclude='*/drivers/scsi/*.[ch]' \
    --exclude='*/drivers/infiniband/hw/*.[ch]' --exclude='*/drivers/usb/*.c' \
    --exclude='*/sound/*.[ch]' --exclude='*/Documentation/*/*' --exclude='*/tools/testing/*' \
    --exclude='*.dts' --exclude='*.dtsi'
rm "$package"

cd source
make ARCH=um tinyconfig
./scripts/kconfig/merge_config.sh -m .config "$config"
make ARCH=um olddefconfig
for option in RDMA_RXE RDMA_SIW INFINIBAND_USER_ACCESS HOSTFS VETH NET_SCH_NETEM; do
  grep -q "^CONFIG_$option=y" .config || { echo "error: this source has no CONFIG_$option" >&2; exit 1; }
done
# What the build says of itself must not differ from machine to machine.
make ARCH=um -j"$jobs" KBUILD_BUILD_USER=farside KBUILD_BUILD_HOST=guest linux
strip -o ../linux linux
cp .config ../config
