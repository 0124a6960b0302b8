package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// becomeVariable names the user as which a copy of this test drops its rights before it executes its arguments.
const becomeVariable = "HOLDFAST_TEST_BECOME"

func TestMain(m *testing.M) {
	user, err := strconv.Atoi(os.Getenv(becomeVariable))
	if err != nil {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	if err = shed(user); err == nil {
		err = unix.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestShed: the daemon has no capability, can gain none, and is not root unless that is requested. It keeps a group that may read its
// token.
func TestShed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root has rights to drop")
	}
	roots := filepath.Join(t.TempDir(), "root's")
	if err := os.WriteFile(roots, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for user, wants := range map[int][]string{
		65532: {"Uid: 65532 65532 65532 65532", "Gid: 65532 65532 65532 65532", "Groups: 2000"},
		0:     {"Uid: 0 0 0 0", "Groups: 0 2000"},
	} {
		with := func(args ...string) *exec.Cmd {
			cmd := exec.Command("/proc/self/exe", args...)
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", becomeVariable, user))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{0, 2000}}}
			return cmd
		}
		out, err := with("/bin/cat", "/proc/self/status").CombinedOutput()
		if err != nil {
			t.Fatalf("user %d: %v: %s", user, err, out)
		}
		status := strings.Join(strings.Fields(string(out)), " ") + " "
		wants = append(wants, "CapInh: 0000000000000000", "CapPrm: 0000000000000000", "CapEff: 0000000000000000", "CapBnd: 0000000000000000",
			"CapAmb: 0000000000000000", "NoNewPrivs: 1")
		for _, want := range wants {
			if !strings.Contains(status, want+" ") {
				t.Errorf("user %d: not %s in %s", user, want, status)
			}
		}
		if err := with("/bin/cat", roots).Run(); (err == nil) != (user == 0) {
			t.Errorf("user %d reads a file of root's alone: %v", user, err)
		}
	}
}
