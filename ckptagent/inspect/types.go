package inspect

// Version is that of the document: Storage as JSON, which an agent answers and kubectl holdfast ckpt reads.
const Version = 1

// Status is how a file is.
type Status string

// How files are.
const (
	OK            Status = "ok"
	Missing       Status = "missing"
	Torn          Status = "torn"
	WrongChecksum Status = "wrong checksum"
	OtherVersion  Status = "of another version"
	// Mismatch: it is whole, and another one than its name or the manifest says.
	Mismatch   Status = "another file"
	Unreadable Status = "unreadable"
)

// Statuses are all of them.
var Statuses = []Status{OK, Missing, Torn, WrongChecksum, OtherVersion, Mismatch, Unreadable}

// Storage is what lies in a claim or in one job's folder.
type Storage struct {
	Version int `json:"version"`
	// Verified: every byte was read; else headers and lengths alone.
	Verified bool     `json:"verified,omitempty"`
	Folders  []Folder `json:"folders,omitempty"`
	// Notes are what was left out, and why.
	Notes []string `json:"notes,omitempty"`
}

// Folder is a job's.
type Folder struct {
	Name string `json:"name"`
	// Steps are those of all generations, newest first.
	Steps []Step `json:"steps,omitempty"`
	// Foreign counts what is not named as ours; nothing ever touches it.
	Foreign int `json:"foreign,omitempty"`
}

// Step is what lies there of one step of one generation.
type Step struct {
	Step       int64 `json:"step"`
	Generation int64 `json:"generation"`
	// Branch is the line of training that it is of: by the manifest, else by the first whole header.
	Branch int64 `json:"branch,omitempty"`
	// Ranks is the number of ranks: from the manifest, else from the first complete header; 0: unknown.
	Ranks int `json:"ranks,omitempty"`
	// Bytes are those of the rank files.
	Bytes int64 `json:"bytes"`
	// Manifest is how that file is.
	Manifest    Status `json:"manifest"`
	ManifestWhy string `json:"manifestWhy,omitempty"`
	// Good and Bad count rank files that are OK and that are not.
	Good int `json:"good"`
	Bad  int `json:"bad,omitempty"`
	// Files are the rank files by rank; Untold counts those that found no room here.
	Files  []Run `json:"files,omitempty"`
	Untold int   `json:"untold,omitempty"`
	// Unlooked counts those that were not looked at.
	Unlooked int `json:"unlooked,omitempty"`
	// Unfinished counts files that are being written, or that a death left.
	Unfinished int `json:"unfinished,omitempty"`
	// Removed: its manifest went while it was looked at, as superseded steps do.
	Removed bool `json:"removed,omitempty"`
}

// Run is the files of ranks in a row, from Rank on, that are alike.
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

// Has reports whether a rank's file is whole.
func (s *Step) Has(rank int) bool {
	for _, f := range s.Files {
		if rank >= int(f.Rank) && rank < int(f.Rank)+f.Ranks {
			return f.Status == OK
		}
	}
	return false
}
