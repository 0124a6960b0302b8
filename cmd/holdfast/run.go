//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator/local"
)

// grace is how long ranks have to end after Ctrl-C or SIGTERM.
const grace = 10 * time.Second

// options are those of a run.
type options struct {
	// stateBytes is how much state of each rank is kept in memory; 0: none.
	stateBytes uint64
	// hang is a key of hangModes.
	hang string
	// standbys: interpreters are started in advance.
	standbys bool
}

// hangModes are the values of --hang.
var hangModes = map[string]elastic.HangMode{"off": elastic.HangOff, "report": elastic.HangReport, "act": elastic.HangAct}

// maxState bounds --state-size, as admission bounds the annotation.
const maxState = 8 << 40

func runCommand() *cobra.Command {
	o := options{hang: "act", standbys: true}
	cmd := &cobra.Command{
		Use:   "run [FLAGS] [FLAGS OF TORCHRUN] SCRIPT [ARGUMENTS]",
		Short: "Run a script on this machine in place of torchrun",
		Long: `Run a script on this machine in place of torchrun. When a rank dies, all ranks are restarted, in interpreters started
in advance. A script that uses Holdfast's client continues from its state in memory, another one from its own checkpoint.

The flags below come first; all arguments after them are torchrun's.`,
		Example:            "  holdfast run --nproc-per-node=2 train.py --epochs 3\n  holdfast run --state-size=1Gi --nproc-per-node=8 train.py",
		DisableFlagParsing: true, // torchrun's flags are unknown here
	}
	f := cmd.Flags()
	f.Var((*size)(&o.stateBytes), "state-size", "keep up to this much state of each rank in memory, such as 1Gi; for scripts that use the client")
	f.Var((*hang)(&o.hang), "hang", "what is done about ranks that make no step: act, report or off")
	f.Var((*truth)(&o.standbys), "standbys", "start interpreters in advance")
	f.Lookup("standbys").NoOptDefVal = "true"
	help := f.BoolP("help", "h", false, "show this text")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		own, torchrun := split(f, args)
		if err := f.Parse(own); err != nil {
			return fmt.Errorf("%w: see holdfast run --help", err)
		}
		if *help {
			return cmd.Help()
		}
		if len(torchrun) == 0 {
			return errors.New("no script: write holdfast run [FLAGS] [FLAGS OF TORCHRUN] SCRIPT; see holdfast run --help")
		}
		if err := check(torchrun, os.Environ()); err != nil {
			return err
		}
		return run(o, torchrun)
	}
	return cmd
}

// check refuses, before anything starts, what the agent would refuse, in the words of one machine, and more than one machine.
func check(torchrun, environ []string) error {
	env := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	spec, err := launch.Parse(append([]string{"torchrun"}, torchrun...), env)
	var r *launch.Refusal
	switch {
	case errors.As(err, &r) && r.Remedy == launch.RemedyPlain:
		return fmt.Errorf("%s: %s; leave it out, or run the script with torchrun itself", r.Flag, r.Why)
	case err != nil:
		return err
	case spec.Nodes > 1:
		return fmt.Errorf("%s: holdfast run trains on one machine; leave it out, or run a job with Holdfast on Kubernetes, which trains on several", spec.NodesFlag)
	}
	return nil
}

// split separates this command's own flags, which come first, from the arguments for torchrun.
func split(f *pflag.FlagSet, args []string) (own, torchrun []string) {
	i := 0
	for i < len(args) {
		name, _, valued := strings.Cut(args[i], "=")
		long, isLong := strings.CutPrefix(name, "--")
		flag := f.Lookup(long)
		switch {
		case name == "-h":
			i++
			continue
		case !isLong || flag == nil:
			return args[:i], args[i:]
		case !valued && flag.NoOptDefVal == "": // the value is the next argument
			i++
		}
		i = min(i+1, len(args))
	}
	return args, nil
}

// size is a number of bytes, written as a Kubernetes quantity.
type size uint64

func (s *size) String() string { return resource.NewQuantity(int64(*s), resource.BinarySI).String() }
func (s *size) Type() string   { return "SIZE" }

func (s *size) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() <= 0 || q.Value() > maxState {
		return errors.New(`write a size above 0 and up to 8Ti, such as "1Gi"`)
	}
	*s = size(q.Value())
	return nil
}

// hang is the value of --hang.
type hang string

func (h *hang) String() string { return string(*h) }
func (h *hang) Type() string   { return "act|report|off" }

func (h *hang) Set(text string) error {
	if _, known := hangModes[text]; !known {
		return errors.New("write act, report or off")
	}
	*h = hang(text)
	return nil
}

// truth is a flag that is true or false.
type truth bool

func (t *truth) String() string { return strconv.FormatBool(bool(*t)) }
func (t *truth) Type() string   { return "bool" }

func (t *truth) Set(text string) error {
	is, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("write true or false")
	}
	*t = truth(is)
	return nil
}

// run runs torchrun's command in place of a pod's container, and returns how it ended.
func run(o options, torchrun []string) error {
	where, err := newPlace()
	if err != nil {
		return err
	}
	defer where.remove()
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the name of this machine: %w", err)
	}
	serving, err := local.Serve(local.Gang{
		Pod:         elastic.Pod{UID: podUID, Name: name, Node: name, Created: time.Now()},
		Supervision: elastic.Supervision{Hang: hangModes[o.hang]},
		Notice: func(n elastic.Notice) {
			fmt.Fprintf(os.Stderr, "holdfast: %s: %s\n", n.Reason, cause.Printable(n.Message))
		},
	})
	if err != nil {
		return err
	}
	defer serving.Stop() //nolint:errcheck // the run is over
	if err := where.writeToken(serving.Token); err != nil {
		return err
	}
	init := exec.Command(where.root.Binary(), append([]string{"init", "--", "torchrun"}, torchrun...)...)
	init.Env = append(os.Environ(), environment(where, serving, o)...)
	init.Stdin, init.Stdout, init.Stderr = os.Stdin, os.Stdout, os.Stderr
	init.ExtraFiles = where.locks
	// A terminal's Ctrl-C goes to this process alone, which passes it on. If this process dies, init ends the run.
	init.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	return follow(init, serving)
}

// podUID identifies the run's only pod.
const podUID = "local"

// environment returns what init and the agent read.
func environment(where place, serving *local.Server, o options) []string {
	env := []string{
		proc.EnvRoot + "=" + string(where.root),
		proc.EnvCoordinator + "=" + serving.Address,
		proc.EnvCA + "=" + serving.CA,
		proc.EnvPodIP + "=127.0.0.1",
		proc.EnvPodUID + "=" + podUID,
		proc.EnvGrace + "=" + strconv.Itoa(int(grace.Seconds())),
	}
	if o.stateBytes > 0 {
		env = append(env, proc.EnvStateBytes+"="+strconv.FormatUint(o.stateBytes, 10))
	}
	if !o.standbys {
		env = append(env, proc.EnvStandbys+"=off")
	}
	return env
}

// follow starts init, passes signals on to it, and returns how it ended.
func follow(init *exec.Cmd, serving *local.Server) error {
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // nohup
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	runtime.LockOSThread() // init gets its signal when the thread that started it ends
	if err := init.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", init.Path, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- init.Wait() }()
	for {
		select {
		case s := <-signals:
			serving.Over()
			_ = init.Process.Signal(s)
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
					return exitCode(128 + int(status.Signal()))
				}
				return exitCode(exit.ExitCode())
			}
			return err
		}
	}
}
