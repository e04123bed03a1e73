"""The processes of a machine, as the kernel shows them in `/proc`."""


class Proc:
    """A /proc that a test writes, in the kernel's own shapes."""

    def __init__(self, root, *, namespace="pid:[4026531836]"):
        self.root = root
        self.process(1, "init", parent=0)
        (root / "self").symlink_to("1")
        (root / "1/ns/pid").unlink()
        (root / "1/ns/pid").symlink_to(namespace)
        (root / "1/mountinfo").write_text("22 1 0:20 / /proc rw,nosuid - proc proc rw\n")
        (root / "sys/kernel/random").mkdir(parents=True)
        (root / "sys/kernel/random/boot_id").write_text("boot-1\n")

    def process(
        self,
        pid,
        *argv,
        parent=1,
        start=100,
        state="S",
        net="net:[1]",
        inside=None,
        user=None,
        groups="",
        mnt="mnt:[1]",
    ):
        folder = self.root / str(pid)
        for part in ("ns", "fd", "net"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in argv).encode())
        fields = [state, str(parent), *["0"] * 17, str(start), "0"]
        (folder / "stat").write_text(f"{pid} (a) b (c) {' '.join(fields)}\n")
        users = "" if user is None else f"Uid:\t{user}\t{user}\t{user}\t{user}\n"
        users += (
            "" if user is None else f"Gid:\t{user}\t{user}\t{user}\t{user}\nGroups:\t{groups}\n"
        )
        (folder / "status").write_text(f"Name:\tx\n{users}NSpid:\t{pid}\t{inside or pid}\n")
        (folder / "cgroup").write_text("0::/system.slice/x.service\n")
        for name, value in (("pid", "pid:[7]"), ("net", net), ("mnt", mnt)):
            (folder / "ns" / name).unlink(missing_ok=True)
            (folder / "ns" / name).symlink_to(value)
        return folder

    def end(self, pid):
        (self.root / str(pid)).rename(self.root / f"gone-{pid}")
