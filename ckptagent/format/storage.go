package format

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// MaxManifest is more than any manifest has bytes.
const MaxManifest = 16 << 20

// StorageVersion is that of what lies in storage (docs/formats/storage.md); rank files and manifests carry it.
const StorageVersion = 1

// RankFileData is where the data of a rank's file starts.
const RankFileData = PageSize

const (
	magicRankFile = "HFRANKFL"
	// rankFileHead is where the head of a rank's file ends: the same in every version, so that a reader can say of one that
	// it does not know that it is another.
	rankFileHead = 128
)

// RankFile describes one rank's state of one step in storage.
type RankFile struct {
	Rank, WorldSize  uint32
	Step, Generation int64
	// Branch is that of the step.
	Branch   int64
	Length   uint64
	Checksum uint32
}

// Point is the step that the file has.
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

// DecodeRankFile reads the header of a rank's file.
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

// Manifest says that a step is complete in storage: one entry per rank, in order.
type Manifest struct {
	Version    int            `json:"version"`
	Step       int64          `json:"step"`
	Generation int64          `json:"generation"`
	Branch     int64          `json:"branch,omitempty"`
	Ranks      []ManifestRank `json:"ranks"`
}

// ManifestRank is what one rank's file holds.
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

// DecodeManifest reads a manifest's file.
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

// RankFileName names the file of a rank.
func RankFileName(step int64, rank uint32) string { return fmt.Sprintf("step-%d.rank-%d", step, rank) }

// ManifestName names the manifest of a step.
func ManifestName(step int64) string { return fmt.Sprintf("step-%d.manifest.json", step) }

// IndexFolder names the folder by which stock torch.distributed.checkpoint reads a step where it lies.
func IndexFolder(step int64) string { return fmt.Sprintf("step-%d.dcp", step) }

// What lies in it.
const (
	// IndexMetadata says where each tensor's bytes lie in the rank files.
	IndexMetadata = ".metadata"
	// IndexValues has all that is no tensor.
	IndexValues = "values"
)

// GenerationFolder names the folder of a generation.
func GenerationFolder(generation int64) string { return fmt.Sprintf("gen-%d", generation) }

// PartSuffix ends the name of an incomplete file; the part before it, after a dot, names the writer.
const PartSuffix = ".part"

// ParseGenerationFolder reads a name that GenerationFolder made.
func ParseGenerationFolder(name string) (generation int64, ok bool) {
	digits, ok := strings.CutPrefix(name, "gen-")
	if !ok {
		return 0, false
	}
	generation, err := strconv.ParseInt(digits, 10, 64)
	return generation, err == nil && generation >= 0 && GenerationFolder(generation) == name
}

// FileKind says what a file of a generation's folder is.
type FileKind int

// The kinds of files.
const (
	// FileUnknown: not named by us; never touched.
	FileUnknown FileKind = iota
	// FileRank is a rank's state, whole.
	FileRank
	// FileManifest says that all of a step's files are there.
	FileManifest
	// FileIndex is the folder by which stock torch reads a step.
	FileIndex
	// FilePart is a rank's state or a manifest before it is whole.
	FilePart
)

// ParseFileName says what a file of a generation's folder is, and of which step.
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
