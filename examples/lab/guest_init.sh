#!/bin/busybox sh
# The guest's first program. The host's root is read over virtio-9p and never written: what the guest writes goes
# into memory. Commands come by a virtio port, one a line (`ID TIMEOUT BASE64`); answers are `ID RC BASE64`.
export PATH=/bin:/usr/sbin:/usr/bin:/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
for tag in host programs; do
  mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose $tag /$tag || poweroff -f
done
mount -t tmpfs -o mode=755 rw /rw
mkdir -p /rw/upper /rw/work
mount -t overlay -o "lowerdir=/programs:/host,upperdir=/rw/upper,workdir=/rw/work" root /whole || poweroff -f
mount --move /proc /whole/proc
mount --move /sys /whole/sys
mount --move /dev /whole/dev
# Not /tmp: a checkout may lie there. What is written to it goes into memory all the same.
for folder in run var/tmp var/lib/nfs; do mkdir -p /whole/$folder; mount -t tmpfs tmpfs /whole/$folder; done
mkdir -p /whole/run/guest /whole/dev/shm /whole/dev/pts /whole/out
mount -t 9p -o trans=virtio,version=9p2000.L,msize=128000,cache=none out /whole/out
mount -t tmpfs shm /whole/dev/shm
mount -t devpts devpts /whole/dev/pts
mount -t debugfs debug /whole/sys/kernel/debug
mount -t cgroup2 cgroup /whole/sys/fs/cgroup
echo guest >/whole/proc/sys/kernel/hostname
echo 0 >/whole/proc/sys/kernel/printk
cat >/whole/run/guest/loop <<'LOOP'
export HOME=/tmp PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up
port=$(grep -l '^guest.commands$' /sys/class/virtio-ports/*/name)
exec 3<>"/dev/$(basename "$(dirname "$port")")"
echo "ready 0 " >&3
while true; do
  read -r id limit code <&3 || { sleep 0.05; continue; }
  echo "$code" | base64 -d >/run/guest/command
  timeout -s KILL "$limit" /bin/sh /run/guest/command >/run/guest/answer 2>&1 </dev/null 3>&-
  rc=$?
  echo "$id $rc $(base64 -w 0 /run/guest/answer)" >&3
done
LOOP
# With a path: busybox would take itself for any program that it knows by name.
exec chroot /whole /bin/sh /run/guest/loop
