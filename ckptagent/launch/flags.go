package launch

import (
	"slices"
	"strings"
)

// handling says what becomes of a flag.
type handling int

const (
	// honoured: the flag acts here as it does in torchrun.
	//lint:ignore U1000 the zero value: what the table does not mark otherwise
	honoured handling = iota
	// superseded: the coordinator decides what the flag would; it is read and checked, then noted.
	superseded
	// refused: neither; only the value that changes nothing (flag.neutral) passes.
	refused
)

// flag is one option of torchrun. The name is the option's longest spelling with hyphens; torchrun takes
// underscores in its place for all of them.
type flag struct {
	name    string
	short   byte
	boolean bool
	// noEnv marks the few options that torchrun does not read from PET_<NAME>.
	noEnv    bool
	handling handling
	// neutral lists the values of a refused option that change nothing and so pass.
	neutral []string
	remedy  string
}

const (
	remedyLogs  = "remove it, and direct the output of ranks with --log-dir, --redirects and --tee"
	remedyDrop  = "leave it out"
	remedyPlain = "leave it out, or take the annotation holdfast.dev/enabled off the job to run it with plain torchrun"
)

// flags are the options of torch.distributed.run as of torch 2.15.
var flags = []*flag{
	{name: "nnodes"},
	{name: "nproc-per-node"},
	{name: "rdzv-backend", handling: superseded},
	{name: "rdzv-endpoint", handling: superseded},
	{name: "rdzv-id"},
	{name: "rdzv-conf", handling: superseded},
	{name: "standalone", boolean: true},
	{name: "max-restarts"},
	{name: "monitor-interval", handling: superseded},
	{name: "start-method"},
	{name: "event-log-handler", handling: refused, neutral: []string{"null"}, remedy: remedyDrop},
	{name: "role"},
	{name: "module", short: 'm', boolean: true},
	{name: "no-python", boolean: true},
	{name: "run-path", boolean: true, handling: superseded}, // each rank is an interpreter of its own, which runs the script
	{name: "log-dir"},
	{name: "redirects", short: 'r'},
	{name: "tee", short: 't'},
	{name: "log-line-prefix-template"},
	{name: "local-ranks-filter"},
	{name: "duplicate-stdout-filters"},
	{name: "duplicate-stderr-filters"},
	{name: "node-rank", handling: superseded},
	{name: "master-addr", handling: superseded},
	{name: "master-port", handling: superseded},
	{name: "local-addr", handling: superseded},
	{name: "logs-specs", noEnv: true, handling: refused, remedy: remedyLogs},
	{name: "numa-binding", noEnv: true, handling: refused, remedy: remedyPlain},
	{name: "signals-to-handle", handling: refused, neutral: []string{"SIGTERM,SIGINT,SIGHUP,SIGQUIT"}, remedy: remedyDrop},
	{name: "shutdown-timeout"},
	{name: "virtual-local-rank", boolean: true},
	{name: "print-completion", noEnv: true, handling: refused, remedy: "ask the torchrun of the image by its full path"},
	{name: "help", short: 'h', boolean: true, noEnv: true, handling: refused, remedy: "ask the torchrun of the image by its full path"},
}

// useEnvFlag is the one option that torch.distributed.launch has and torchrun has not.
var useEnvFlag = &flag{name: "use-env", boolean: true, noEnv: true}

// envName is the variable that torchrun reads the option's default from.
func (f *flag) envName() string {
	return "PET_" + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))
}

// passes reports whether v is a value of a refused option that changes nothing.
func (f *flag) passes(v string) bool {
	return slices.Contains(f.neutral, v)
}

// byLong finds the option that a long spelling (without the leading hyphens) names, in full or, as
// argparse takes it, by a prefix that fits one option alone.
func byLong(name string, deprecated bool) (*flag, []string) {
	want := strings.ReplaceAll(name, "_", "-")
	known := flags
	if deprecated {
		known = append(slices.Clone(flags), useEnvFlag)
	}
	var found []*flag
	for _, f := range known {
		if f.name == want {
			return f, nil
		}
		if strings.HasPrefix(f.name, want) {
			found = append(found, f)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var names []string
	for _, f := range found {
		names = append(names, "--"+f.name)
	}
	return nil, names
}

func byShort(c byte) *flag {
	for _, f := range flags {
		if f.short != 0 && f.short == c {
			return f
		}
	}
	return nil
}
