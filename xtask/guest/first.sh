#!/bin/sh
# The guest's first program: mounts the folder that the guest shares with the machine and goes on with
# what lies there. `share` is on the kernel's command line: hostfs or 9p.
export PATH=/usr/bin HOME=/tmp
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
for pair in "devpts /dev/pts" "tmpfs /dev/shm" "tmpfs /tmp" "tmpfs /run"; do
  set -- $pair
  mount -t $1 $1 $2
done
chmod 1777 /tmp /dev/shm
ln -sf /run /var/run
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr

hostname guest

case $share in
  hostfs) mount -t hostfs none /share ;;
  9p)
    while read -r module; do
      [ -d /sys/module/$module ] || insmod /modules/$module.ko
    done < /modules/share
    # Not cached: this machine reads what is written while it is written.
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none share /share
    ;;
esac
[ -e /share/init.sh ] || { echo "guest: nothing is shared by '$share'"; poweroff -f; }
# The kernel makes variables of words on its command line that it does not know.
unset share selinux
exec sh /share/init.sh
