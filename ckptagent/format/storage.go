package format

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// MaxManifest exceeds the size of any manifest, in bytes.
const MaxManifest = 16 << 20

// StorageVersion is the version of the format in storage (docs/formats/storage.md), which rank files and manifests have.
const StorageVersion = 1

// RankFileData is the offset of the data in a rank file.
const RankFileData = PageSize

const (
	magicRankFile = "HFRANKFL"
	// rankFileHead is the size of the fixed part of a rank file's header, which is the same in every version, so that a reader recognizes a
	// version that it does not support.
	rankFileHead = 128
)

// RankFile describes one rank's state of one step in storage.
type RankFile struct {
	Rank, WorldSize  uint32
	Step, Generation int64
	// Branch is the step's branch.
	Branch   int64
	Length   uint64
	Checksum uint32
}

// Point returns the file's step.
func (f RankFile) Point() Point { return Point{Branch: f.Branch, Step: f.Step} }

// Encode returns the file's header, RankFileData bytes.
func (f RankFile) Encode() []byte {
	b := make([]byte, RankFileData)
	r := make([]byte, rankFileHead)
	copy(r, magicRankFile)
	le.PutUint32(r[8:], StorageVersion)
	le.PutUint32(r[12:], f.Rank)
	le.PutUint64(r[16:], uint64(f.Step))
	le.PutUint64(r[24:], uint64(f.Generation))
	le.PutUint64(r[32:], f.Length)
	le.PutUint32(r[40:], f.Checksum)
	le.PutUint32(r[44:], f.WorldSize)
	le.PutUint64(r[48:], uint64(f.Branch))
	copy(b, seal(r))
	return b
}

// DecodeRankFile decodes the header of a rank file.
func DecodeRankFile(b []byte) (RankFile, error) {
	if len(b) < rankFileHead || string(b[:8]) != magicRankFile {
		return RankFile{}, fmt.Errorf("rank file: %w: it does not start as one", ErrTorn)
	}
	if err := checkSum(b, rankFileHead); err != nil {
		return RankFile{}, fmt.Errorf("rank file: %w", err)
	}
	if version := le.Uint32(b[8:]); version != StorageVersion {
		return RankFile{}, fmt.Errorf("rank file: %w: %d, this build knows %d", ErrVersion, version, StorageVersion)
	}
	f := RankFile{
		Rank: le.Uint32(b[12:]), WorldSize: le.Uint32(b[44:]), Step: int64(le.Uint64(b[16:])), Generation: int64(le.Uint64(b[24:])),
		Length: le.Uint64(b[32:]), Checksum: le.Uint32(b[40:]), Branch: int64(le.Uint64(b[48:])),
	}
	if f.Step <= 0 || f.Generation <= 0 || f.Branch < 0 || f.Rank >= f.WorldSize {
		return RankFile{}, fmt.Errorf("rank file: %w: it names no step, generation or rank", ErrTorn)
	}
	return f, nil
}

// Manifest marks a step as complete in storage: one entry per rank, in order.
type Manifest struct {
	Version    int            `json:"version"`
	Step       int64          `json:"step"`
	Generation int64          `json:"generation"`
	Branch     int64          `json:"branch,omitempty"`
	Ranks      []ManifestRank `json:"ranks"`
}

// ManifestRank describes one rank's file.
type ManifestRank struct {
	Length   uint64 `json:"length"`
	Checksum uint32 `json:"crc32c"`
}

// Encode returns the manifest's file.
func (m Manifest) Encode() []byte {
	m.Version = StorageVersion
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		panic(err) // plain numbers
	}
	return append(b, '\n')
}

// DecodeManifest decodes a manifest's file.
func DecodeManifest(b []byte) (Manifest, error) {
	var m Manifest
	switch err := json.Unmarshal(b, &m); {
	case err != nil:
		return Manifest{}, fmt.Errorf("manifest: %w: %w", ErrTorn, err)
	case m.Version != StorageVersion:
		return Manifest{}, fmt.Errorf("manifest: %w: %d, this build knows %d", ErrVersion, m.Version, StorageVersion)
	}
	if m.Step <= 0 || m.Generation <= 0 || m.Branch < 0 || len(m.Ranks) == 0 {
		return Manifest{}, fmt.Errorf("manifest: %w: it names no step, generation or rank", ErrTorn)
	}
	return m, nil
}

// RankFileName returns the file name of a rank's state.
func RankFileName(step int64, rank uint32) string { return fmt.Sprintf("step-%d.rank-%d", step, rank) }

// ManifestName returns the file name of a step's manifest.
func ManifestName(step int64) string { return fmt.Sprintf("step-%d.manifest.json", step) }

// IndexFolder returns the name of the folder with which stock torch.distributed.checkpoint reads a step in place.
func IndexFolder(step int64) string { return fmt.Sprintf("step-%d.dcp", step) }

// Files of that folder.
const (
	// IndexMetadata has each tensor's place in the rank files.
	IndexMetadata = ".metadata"
	// IndexValues has all values that are not tensors.
	IndexValues = "values"
)

// HangsFolder is the folder in a job's folder for files about ranks that stood still.
const HangsFolder = "hangs"

// GenerationFolder returns the name of a generation's folder.
func GenerationFolder(generation int64) string { return fmt.Sprintf("gen-%d", generation) }

// PartSuffix ends the name of an incomplete file; the part before the suffix, after a dot, names the writer.
const PartSuffix = ".part"

// ParseGenerationFolder parses a name from GenerationFolder.
func ParseGenerationFolder(name string) (generation int64, ok bool) {
	digits, ok := strings.CutPrefix(name, "gen-")
	if !ok {
		return 0, false
	}
	generation, err := strconv.ParseInt(digits, 10, 64)
	return generation, err == nil && generation >= 0 && GenerationFolder(generation) == name
}

// FileKind is the kind of a file in a generation's folder.
type FileKind int

// The kinds of files.
const (
	// FileUnknown: not a name of Holdfast; never changed.
	FileUnknown FileKind = iota
	// FileRank is a rank's complete state.
	FileRank
	// FileManifest is a manifest: all files of the step are complete.
	FileManifest
	// FileIndex is the folder by which stock torch reads a step.
	FileIndex
	// FilePart is an incomplete rank file or manifest.
	FilePart
)

// ParseFileName returns the kind and the step of a file in a generation's folder.
func ParseFileName(name string) (kind FileKind, step int64) {
	whole := name
	if cut, ok := strings.CutSuffix(name, PartSuffix); ok {
		dot := strings.LastIndexByte(cut, '.')
		if dot < 0 {
			return FileUnknown, 0
		}
		whole = cut[:dot]
	}
	digits, ok := strings.CutPrefix(whole, "step-")
	digits, rest, found := strings.Cut(digits, ".")
	step, err := strconv.ParseInt(digits, 10, 64)
	if !ok || !found || err != nil || step < 0 {
		return FileUnknown, 0
	}
	switch rank, isRank := strings.CutPrefix(rest, "rank-"); {
	case whole == ManifestName(step):
		kind = FileManifest
	case whole == IndexFolder(step) && whole == name:
		kind = FileIndex
	case isRank:
		n, err := strconv.ParseUint(rank, 10, 32)
		if err != nil || whole != RankFileName(step, uint32(n)) {
			return FileUnknown, 0
		}
		kind = FileRank
	default:
		return FileUnknown, 0
	}
	if whole != name {
		kind = FilePart
	}
	return kind, step
}
