package ckpt

import (
	"encoding/json"
	"fmt"
	"slices"

	"holdfast.dev/holdfast/ckptagent/inspect"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
)

// MaxAnswer bounds an agent's report, in bytes.
const MaxAnswer = 16 << 20

// maxText bounds one text of a report.
const maxText = 300

// Parse parses an agent's report. It is untrusted: any process in the pod may have written it.
func Parse(b []byte) (inspect.Storage, error) {
	var s inspect.Storage
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("decoding the agent's answer: %w", err)
	}
	if s.Version != inspect.Version {
		return s, fmt.Errorf("the agent's answer has version %d, this build supports %d: use the kubectl-holdfast of the version that the cluster runs, or --dir", s.Version, inspect.Version)
	}
	if len(s.Folders) > 1 {
		return s, fmt.Errorf("the agent's answer has %d jobs, not one", len(s.Folders))
	}
	for i := range s.Folders {
		for j := range s.Folders[i].Steps {
			if err := check(&s.Folders[i].Steps[j]); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// check refuses figures that no folder can have.
func check(s *inspect.Step) error {
	if s.Step < 0 || s.Generation < 0 || s.Branch < 0 || s.Bytes < 0 || s.Good < 0 || s.Bad < 0 || s.Untold < 0 || s.Unlooked < 0 ||
		s.Unfinished < 0 ||
		s.Ranks < 0 ||
		!slices.Contains(inspect.Statuses, s.Manifest) {
		return fmt.Errorf("the agent's answer about step %d is inconsistent", s.Step)
	}
	last := int64(-1)
	for _, f := range s.Files {
		if int64(f.Rank) <= last || f.Ranks < 1 || f.Ranks > maxWorld || f.Bytes < 0 || !slices.Contains(inspect.Statuses, f.Status) {
			return fmt.Errorf("the agent's answer about the files of step %d is inconsistent", s.Step)
		}
		last = int64(f.Rank) + int64(f.Ranks) - 1
	}
	return nil
}

// Clean removes terminal control characters from texts, and cuts long ones.
func Clean(s inspect.Storage) inspect.Storage {
	for i := range s.Notes {
		s.Notes[i] = page.Cut(s.Notes[i], maxText)
	}
	for i := range s.Folders {
		f := &s.Folders[i]
		f.Name = page.Cut(f.Name, maxText)
		for j := range f.Steps {
			f.Steps[j].ManifestWhy = page.Cut(f.Steps[j].ManifestWhy, maxText)
			for k := range f.Steps[j].Files {
				f.Steps[j].Files[k].Why = page.Cut(f.Steps[j].Files[k].Why, maxText)
			}
		}
	}
	return s
}
