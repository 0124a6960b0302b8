// Package rivals starts the launchers that benchmarks compare Holdfast with, and ends all their processes.
package rivals

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Home has the launchers that hack/rivals.sh installs, beside a torch that they support.
const Home = "/opt/holdfast-rivals"

// Installed reports whether the program of a virtual environment can be started.
func Installed(home, program string) bool {
	_, err := os.Stat(filepath.Join(home, "bin", program))
	return err == nil
}

// mark is in the environment of all processes of a launcher: some put their ranks into sessions of their own.
const mark = "BENCH_RIVAL_FOLDER="

// Apart returns the command line by which a program has the folder `own` of its working directory in place of another folder. Several nodes
// of a launcher that run on one machine would share that one.
func Apart(own, folder string, argv ...string) []string {
	const script = `mkdir -p "$0" "$1" && mount --bind "$0" "$1" && shift && exec "$@"`
	return append([]string{"/usr/bin/unshare", "--mount", "sh", "-c", script, own, folder}, argv...)
}

// Start starts a program of a virtual environment, or one with an absolute path, in a folder, and passes each line of its output as it
// arrives. stop ends all processes that were started in that folder.
func Start(home string, argv, env []string, folder string, line func(text string, now time.Time)) (stop func(), err error) {
	program := argv[0]
	if !filepath.IsAbs(program) {
		program = filepath.Join(home, "bin", program)
	}
	cmd := exec.Command(program, argv[1:]...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), env...)
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(home, "bin")+":"+os.Getenv("PATH"), "OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1", mark+folder)
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return nil, errors.Join(err, read.Close())
	}
	go func() {
		lines := bufio.NewScanner(read)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			line(lines.Text(), time.Now())
		}
	}()
	return func() {
		endAll(folder)
		_ = cmd.Wait()
		_ = read.Close()
	}, nil
}

// endAll kills all processes that were started in a folder.
func endAll(folder string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && slices.Contains(strings.Split(string(env), "\x00"), mark+folder) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// FreePort returns a port that is free now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
