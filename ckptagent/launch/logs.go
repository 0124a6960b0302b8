package launch

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Streams selects, by local rank, standard output (1), standard error (2) or both (3).
type Streams struct {
	All int `json:"all,omitempty"`
	// Of, if set, applies to its ranks; the others have none.
	Of map[int]int `json:"of,omitempty"`
}

func (s Streams) of(local int) int {
	if s.Of != nil {
		return s.Of[local]
	}
	return s.All
}

// Logs configures the output of ranks like torch's DefaultLogsSpecs. The zero value leaves it on the console.
type Logs struct {
	// Dir is the folder for logs; empty: a new temporary one; /dev/null: none.
	Dir string `json:"dir,omitempty"`
	// DirFlag is the flag that set Dir, for messages.
	DirFlag string `json:"-"`
	// Redirects go only to files, Tee to files and the console.
	Redirects Streams `json:"redirects,omitzero"`
	Tee       Streams `json:"tee,omitzero"`
	// Ranks are the local ranks with output on the console; nil: all.
	Ranks []int `json:"ranks,omitempty"`
	// Prefix is the template for the start of each line of a tee on the console; empty: [<role><local rank>]:
	Prefix string `json:"prefix,omitempty"`
	// OutFilters and ErrFilters: lines of a tee with one of these texts are also written to one file for all ranks.
	OutFilters []string `json:"outFilters,omitempty"`
	ErrFilters []string `json:"errFilters,omitempty"`
}

// devNull as a folder disables logs; as a file it drops output.
const devNull = "/dev/null"

// Attempt identifies one start of the ranks of a pod.
type Attempt struct {
	// ID has at least 16 letters and is the same for all attempts of a launcher. Temp is the folder for temporary files.
	ID, Temp, Hostname  string
	Restarts, FirstRank int
}

// Files are the places of one attempt's logs.
type Files struct {
	// Run is the folder of all attempts, Dir that of this one; empty: no logs.
	Run, Dir string
	Rank     []RankFiles
	// FilteredOut and FilteredErr are the files for filtered lines; empty: no filters.
	FilteredOut, FilteredErr string
}

// RankFiles are the files of one local rank's output. Stdout and Stderr are empty if the stream stays on the console.
type RankFiles struct {
	Dir, Stdout, Stderr, Error string
	// TeeStdout and TeeStderr: the file is also copied to the console, with Prefix before each line.
	TeeStdout, TeeStderr bool
	Prefix               string
}

// Files returns the files of one attempt's logs, named as torch names them.
func (s Spec) Files(a Attempt) Files {
	f := Files{Rank: make([]RankFiles, s.Ranks)}
	if s.Logs.Dir == devNull {
		return f
	}
	root := s.Logs.Dir
	if root == "" {
		root = path.Join(a.Temp, "torchelastic_"+a.ID[8:16])
	}
	f.Run = path.Join(root, s.RunID+"_"+a.ID[:8])
	f.Dir = path.Join(f.Run, "attempt_"+strconv.Itoa(a.Restarts))
	if len(s.Logs.OutFilters) > 0 {
		f.FilteredOut = path.Join(f.Dir, "filtered_stdout.log")
	}
	if len(s.Logs.ErrFilters) > 0 {
		f.FilteredErr = path.Join(f.Dir, "filtered_stderr.log")
	}
	for local := range f.Rank {
		f.Rank[local] = s.rankFiles(f.Dir, local, a)
	}
	return f
}

func (s Spec) rankFiles(attempt string, local int, a Attempt) RankFiles {
	dir := path.Join(attempt, strconv.Itoa(local))
	r := RankFiles{Dir: dir, Error: path.Join(dir, "error.json"), Prefix: s.prefix(local, a)}
	tee := s.Logs.Tee.of(local)
	files := s.Logs.Redirects.of(local) | tee
	shown := s.Logs.Ranks == nil || slices.Contains(s.Logs.Ranks, local)
	place := func(bit int, name string) (file string, teed bool) {
		switch {
		case files&bit != 0:
			return path.Join(dir, name), tee&bit != 0 && shown
		case !shown:
			return devNull, false
		}
		return "", false
	}
	r.Stdout, r.TeeStdout = place(1, "stdout.log")
	r.Stderr, r.TeeStderr = place(2, "stderr.log")
	return r
}

func (s Spec) prefix(local int, a Attempt) string {
	if s.Logs.Prefix == "" {
		return "[" + s.Role + strconv.Itoa(local) + "]:"
	}
	return substitute(s.Logs.Prefix, map[string]string{
		"role_name": s.Role, "rank": strconv.Itoa(a.FirstRank + local), "local_rank": strconv.Itoa(local), "hostname": a.Hostname,
	})
}

// Asked reports whether the user set any option about logs, so that a failure to write them is an error.
func (l Logs) Asked() bool {
	return l.Dir != "" && l.Dir != devNull || l.Redirects.All != 0 || l.Redirects.Of != nil || l.Tee.All != 0 || l.Tee.Of != nil
}

var (
	streamsAll = regexp.MustCompile(`^[0123]$`)
	streamsOf  = regexp.MustCompile(`^(\d:[0123],)*(\d:[0123])$`)
)

func streams(val value) (s Streams, r *Refusal) {
	switch {
	case streamsAll.MatchString(val.v):
		s.All = int(val.v[0] - '0')
	case streamsOf.MatchString(val.v):
		s.Of = map[int]int{}
		for pair := range strings.SplitSeq(val.v, ",") {
			s.Of[int(pair[0]-'0')] = int(pair[2] - '0')
		}
	default:
		r = refuse(val.as, "does not say which streams", "write 0, 1 (standard output), 2 (standard error), 3 (both), or such a number for each local rank, such as 0:3,1:1")
	}
	return s, r
}

// set sets one option about logs.
func (l *Logs) set(name string, val value) (r *Refusal) {
	switch name {
	case "log-dir":
		l.Dir, l.DirFlag = val.v, val.as
	case "redirects":
		l.Redirects, r = streams(val)
	case "tee":
		l.Tee, r = streams(val)
	case "log-line-prefix-template":
		l.Prefix = val.v
	case "local-ranks-filter":
		if val.v == "" {
			return nil
		}
		for word := range strings.SplitSeq(val.v, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(word))
			if err != nil {
				return refuse(val.as, "is not a list of local ranks", "write numbers with commas between them, such as 0,1")
			}
			l.Ranks = append(l.Ranks, n)
		}
	case "duplicate-stdout-filters":
		l.OutFilters = filters(val.v)
	case "duplicate-stderr-filters":
		l.ErrFilters = filters(val.v)
	}
	return r
}

// filters splits at commas; a double comma is a literal one.
func filters(v string) []string {
	if v == "" {
		return nil
	}
	out := strings.Split(strings.ReplaceAll(v, ",,", "\x00"), ",")
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], "\x00", ",")
	}
	return out
}
