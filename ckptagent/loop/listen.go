//go:build linux

package loop

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

// pollEvery is how often an arena is polled without a datagram.
const pollEvery = 500 * time.Millisecond

// maxDatagram exceeds the default limit of a unix datagram, in bytes.
const maxDatagram = 256 << 10

// listen opens both sockets.
func (a *Agent) listen() (func(), error) {
	path := a.c.Root.ClientSocket()
	_ = os.Remove(path)
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listening for clients: %w", err)
	}
	_ = os.Chmod(path, 0o777)
	if err := proc.TellSenders(datagrams); err != nil {
		datagrams.Close()
		return nil, err
	}
	go a.receive(datagrams)
	launches, err := proc.Launches(a.c.Root,
		func(l *proc.Launch) {
			may := make(chan bool, 1)
			a.do(func() { may <- a.mayLaunch(l) })
			if <-may {
				l.CountDevices(a.c.Root) // it may start a program, which takes time
			}
			a.do(func() { a.acceptLauncher(l) })
		},
		func(l *proc.Launch, sig int) {
			a.do(func() {
				if l == a.launch {
					a.take(ckptagent.Signalled{Signal: sig, Launcher: true})
				}
			})
		},
		func(l *proc.Launch) {
			a.do(func() {
				if l == a.launch {
					a.take(ckptagent.LauncherGone{})
				}
			})
		})
	if err != nil {
		datagrams.Close()
		return nil, err
	}
	return func() { launches.Close(); datagrams.Close() }, nil
}

// acceptLauncher accepts a launcher, or refuses it with the reason.
func (a *Agent) acceptLauncher(l *proc.Launch) {
	user := l.Limits.Identity.UID
	if !a.mayLaunch(l) {
		l.Close()
		l.Refuse(fmt.Sprintf("launchers of this container run as user %d, and this one as user %d; start it as that one", *a.user, user))
		return
	}
	if ok, why := a.state.Serves(l.ID); !ok {
		l.Close()
		l.Refuse(why)
		return
	}
	if r := a.state.Returned; r != nil && l.ID == a.state.Launcher { // the previous agent died while it sent the result
		if job, err := proc.NewJob(a.c.Root, a.c.Container, l); err == nil {
			a.job = job
			a.tails = job.Tail(a.state.Run, true)
		}
		a.returnLauncher(l, a.outcome(*r))
		return
	}
	job, err := proc.NewJob(a.c.Root, a.c.Container, l)
	if err != nil {
		l.Close()
		l.Refuse(err.Error())
		a.take(ckptagent.LaunchRefused{Message: err.Error()})
		return
	}
	limit := a.limitRestarts(&job.Spec)
	launched := ckptagent.Launched{
		ID:          l.ID,
		MaxRestarts: limit,
		Ranks:       job.Spec.Ranks,
		Nodes:       job.Spec.Nodes,
		NodesFlag:   job.Spec.NodesFlag,
		NodesRemedy: job.Spec.NodesRemedy,
	}
	if ok, why := a.state.Matches(launched); !ok {
		l.Close()
		l.Refuse(why)
		return
	}
	if a.arenas != nil && a.arenas.Len() != job.Spec.Ranks { // of the previous launcher
		a.closeArenas(func() { a.acceptLauncher(l) })
		return
	}
	if a.state.Launcher != l.ID {
		a.tails, a.needed = nil, 0
		clear(a.blocks)
		if err := proc.NoteShared(a.c.Root, user); err != nil {
			a.logf("%v", err)
		}
	}
	a.launch, a.shim, a.user = l, l.Shim, &user
	a.openArenas(job.Spec.Ranks)
	if err := job.GiveFiles(a.arenas != nil); err != nil {
		a.logf("giving files to user %d, as whom ranks run: %v", user, err)
	}
	a.followPages(job.Spec.Ranks)
	job.Arena = a.arenas != nil
	a.job = job
	if len(job.Spec.Superseded) > 0 {
		a.logf("decided by the coordinator instead: %s", strings.Join(job.Spec.Superseded, " "))
	}
	a.checks.End()
	a.standbys.Configure(job, a.standbysOff())
	if a.tails == nil && a.state.Run.Number > 0 {
		a.tails = job.Tail(a.state.Run, true)
		if a.state.Clean {
			a.tails.Finish()
		}
	}
	a.reportCapabilities()
	a.take(launched)
	a.startAgain()
}

// limitRestarts returns the limit of restarts, which ranks receive: the job's, else the launcher's; nil: neither has one.
func (a *Agent) limitRestarts(spec *launch.Spec) *int {
	said, flag := a.c.MaxRestarts, spec.MaxRestarts
	switch {
	case said != nil && spec.MaxRestartsSaid && flag != *said:
		a.logf("holdfast.dev/max-restarts of the job, %d, takes the place of the launcher's %d", *said, flag)
	case said == nil && spec.MaxRestartsSaid:
		said = &flag
	}
	spec.MaxRestarts = protocol.RestartsWithoutProgress
	if said != nil {
		spec.MaxRestarts = *said
	}
	return said
}

// mayLaunch reports whether the launcher's user may command this agent.
func (a *Agent) mayLaunch(l *proc.Launch) bool {
	return a.user == nil || a.trusts(l.Limits.Identity.UID)
}

func (a *Agent) standbysOff() string {
	switch {
	case !a.c.Standbys:
		return "standbys are off: holdfast.dev/standbys is off"
	case !a.job.Spec.StartsPython():
		return "standbys are off: the launcher starts a program that is not known to be a Python interpreter"
	}
	return ""
}

// openArenas opens or creates the arenas of this pod; without arenas it returns why.
func openArenas(c Config, ranks int, now time.Time) (*arena.Set, string) {
	switch {
	case c.StateBytes == 0:
		return nil, "state in memory is off: no holdfast.dev/state-size"
	case c.Slots < format.MinSlots || c.Slots > format.Slots:
		return nil, fmt.Sprintf("state in memory is off: %s is not a number from %d to %d; remove it from the container's environment and set holdfast.dev/slots", proc.EnvSlots, format.MinSlots, format.Slots)
	case c.Ranks > 0 && ranks > c.Ranks:
		return nil, fmt.Sprintf("state in memory is off: the launcher starts %d ranks and memory was counted for %d; set holdfast.dev/ranks to %d", ranks, c.Ranks, ranks)
	}
	set, err := arena.Open(c.Root.Memory(), ranks, c.Slots, c.StateBytes, c.PodUID, now)
	if err != nil {
		return nil, "state in memory is off: " + err.Error()
	}
	return set, ""
}

// datagram is a client's message; it only announces content of its arena.
type datagram struct {
	Rank int    `json:"rank"`
	Gen  int64  `json:"gen"`
	Ev   string `json:"ev"`
	Step int64  `json:"step"`
}

func (a *Agent) receive(conn *net.UnixConn) {
	buf := make([]byte, maxDatagram)
	for {
		n, user, err := proc.ReadSent(conn, buf)
		if err != nil {
			return
		}
		var d datagram
		if json.Unmarshal(buf[:n], &d) == nil {
			a.do(func() {
				if a.trusts(user) {
					a.onDatagram(d)
				}
			})
		}
	}
}

// trusts reports whether processes of a user may command this agent: the container's own user, root, and the user of the container's first
// launcher. Others, such as a sandbox for generated code, may not.
func (a *Agent) trusts(user uint32) bool {
	return user == 0 || user == uint32(os.Geteuid()) || a.user != nil && user == *a.user
}

// progress returns the event that a datagram announces, if any.
func (d datagram) progress() (ckptagent.Progress, bool) {
	switch d.Ev {
	case "attached", "restored", "step", "copied":
		return ckptagent.Progress{Generation: d.Gen, Local: d.Rank, Attached: true, Restored: d.Ev == "restored", Step: d.Step}, true
	}
	return ckptagent.Progress{}, false
}

func (a *Agent) onDatagram(d datagram) {
	if p, ok := d.progress(); ok {
		a.take(p)
	}
	if d.Rank >= 0 && d.Rank < len(a.polls) {
		select {
		case a.polls[d.Rank] <- struct{}{}:
		default:
		}
	}
}

// knownModules are the modules that standbys import and the bytes that these take; 0: unknown.
type knownModules struct {
	Modules []string `json:"modules"`
	Memory  uint64   `json:"memory,omitempty"`
}

// setModules makes standbys import these modules, and stores their names for the next agent.
func (a *Agent) setModules(modules []string, memory uint64) {
	a.modules = modules
	a.standbys.SetModules(modules, memory)
	raw, err := json.Marshal(knownModules{Modules: modules, Memory: memory})
	if err == nil {
		err = proc.Replace(a.c.Root.KnownModulesFile(), raw)
	}
	if err != nil {
		a.logf("storing the list of modules: %v", err)
	}
}

// follow polls a rank's arena at each datagram, and regularly in case one was lost, until poll is closed.
func (a *Agent) follow(set *arena.Set, local int, poll <-chan struct{}) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var before arena.Progress
	var held []protocol.Point
	for {
		select {
		case _, open := <-poll:
			if !open {
				return
			}
		case <-tick.C:
		}
		p, sealed := set.Poll(local, time.Now())
		if p.Generation == 0 {
			continue
		}
		if p != before {
			news := p.Saves != before.Saves
			before = p
			a.do(func() {
				a.needed = max(a.needed, p.Needed)
				a.blocks[local] = p.Blocks
				a.take(progress(local, p))
				if news {
					a.take(ckptagent.Saved{Generation: p.Generation, Local: local, Saves: p.Saves})
				}
			})
		}
		if !slices.Equal(sealed, held) {
			held = sealed
			a.post(ckptagent.Sealed{Generation: p.Generation, Local: local, Steps: sealed})
		}
	}
}
