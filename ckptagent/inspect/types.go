package inspect

// Version is the version of Storage as JSON, which an agent sends and kubectl holdfast ckpt reads.
const Version = 1

// Status is the state of a file.
type Status string

// States of files.
const (
	OK            Status = "ok"
	Missing       Status = "missing"
	Torn          Status = "torn"
	WrongChecksum Status = "wrong checksum"
	OtherVersion  Status = "of another version"
	// Mismatch: the file is complete, but contradicts its name or the manifest.
	Mismatch   Status = "another file"
	Unreadable Status = "unreadable"
)

// Statuses are all of them.
var Statuses = []Status{OK, Missing, Torn, WrongChecksum, OtherVersion, Mismatch, Unreadable}

// Storage is the content of a claim or of one job's folder.
type Storage struct {
	Version int `json:"version"`
	// Verified: every byte was read; otherwise only headers and lengths.
	Verified bool     `json:"verified,omitempty"`
	Folders  []Folder `json:"folders,omitempty"`
	// Notes are what was left out, and why.
	Notes []string `json:"notes,omitempty"`
}

// Folder is the content of one job's folder.
type Folder struct {
	Name string `json:"name"`
	// Steps are those of all generations, newest first.
	Steps []Step `json:"steps,omitempty"`
	// Foreign is the number of names that are not Holdfast's.
	Foreign int `json:"foreign,omitempty"`
}

// Step is the content of one step of one generation.
type Step struct {
	Step       int64 `json:"step"`
	Generation int64 `json:"generation"`
	// Branch is the step's branch: from the manifest, else from the first complete header.
	Branch int64 `json:"branch,omitempty"`
	// Ranks is the number of ranks: from the manifest, else from the first complete header; 0: unknown.
	Ranks int `json:"ranks,omitempty"`
	// Bytes is the size of the rank files.
	Bytes int64 `json:"bytes"`
	// Manifest is the state of the manifest.
	Manifest    Status `json:"manifest"`
	ManifestWhy string `json:"manifestWhy,omitempty"`
	// Good is the number of rank files that are OK, Bad that of all others.
	Good int `json:"good"`
	Bad  int `json:"bad,omitempty"`
	// Files are the rank files by rank; Untold is the number beyond maxRuns.
	Files  []Run `json:"files,omitempty"`
	Untold int   `json:"untold,omitempty"`
	// Unlooked is the number that were not inspected.
	Unlooked int `json:"unlooked,omitempty"`
	// Unfinished is the number of files that are being written, or that a dead writer left.
	Unfinished int `json:"unfinished,omitempty"`
	// Removed: its manifest was removed during the inspection, as happens to superseded steps.
	Removed bool `json:"removed,omitempty"`
}

// Run is a range of consecutive ranks, from Rank on, whose files have the same state.
type Run struct {
	Rank   uint32 `json:"rank"`
	Ranks  int    `json:"ranks"`
	Status Status `json:"status"`
	Why    string `json:"why,omitempty"`
	Bytes  int64  `json:"bytes"`
}

func (r Run) joins(next Run) bool {
	return next.Rank == r.Rank+uint32(r.Ranks) && next.Status == r.Status && next.Why == r.Why
}

// Complete: a complete manifest, and all files that it lists.
func (s *Step) Complete() bool {
	return s.Manifest == OK && s.Bad == 0 && s.Ranks > 0 && s.Good == s.Ranks
}

// Has reports whether a rank's file is complete.
func (s *Step) Has(rank int) bool {
	for _, f := range s.Files {
		if rank >= int(f.Rank) && rank < int(f.Rank)+f.Ranks {
			return f.Status == OK
		}
	}
	return false
}
