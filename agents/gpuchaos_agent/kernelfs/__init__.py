"""Small text trees of the kernel (sysfs, procfs): one file for one thing that is read there."""
