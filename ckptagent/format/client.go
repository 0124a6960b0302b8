package format

import "fmt"

// Client is what the client writes for the agent.
type Client struct {
	// Seq numbers the client's writes of this page.
	Seq        uint64
	Generation int64
	PID        uint32
	Attached   bool
	Restored   bool
	// Restoring: the client has begun to restore the generation's step and has not finished. After a failure it stays set until a step is
	// finished.
	Restoring bool
	// RestoredStep is the restored step, if Restored; 0: the client started from the beginning.
	RestoredStep int64
	// Step is the newest finished step that the script reported.
	Step int64

	// Slot, Grant, CopyStep and Length announce the newest complete copy; Grant 0: none.
	Slot     uint32
	Grant    uint64
	CopyStep int64
	Length   uint64

	// Saves counts copies, Skipped saves without a free slot, Refused saves of a state that cannot be stored.
	Saves, Skipped, Refused uint64
	// Needed is the size of the state in bytes, if it did not fit.
	Needed uint64

	// Branch of the newest complete copy.
	Branch int64
	// OverlapStep and OverlapGrant name an overlapped copy that is not verified yet; 0: none.
	OverlapStep  int64
	OverlapGrant uint64
	// Overlapped counts saves copied during training, Dropped those given up because their source had changed.
	Overlapped, Dropped uint64
	// Blocking counts layouts whose saves are copied only inside save, Reason is why the newest of them is.
	Blocking uint64
	Reason   Reason
	// Grouped: restore was called after the process group was made.
	Grouped bool
	// Span is as in protocol.Rank.
	Span uint32
}

// Reason is why saves of a layout are not overlapped.
type Reason uint32

// The reasons of clients; 0: none.
const (
	ReasonUnequal Reason = iota + 1
	ReasonNoHook
	ReasonInBackward
	ReasonCompiled
	ReasonUnknown
	ReasonClosure
)

// reasons are their texts, as in docs/formats/checkpoint.md.
var reasons = map[Reason]string{
	ReasonUnequal:    "the state was found changed between a save and the next optimizer step",
	ReasonNoHook:     "no optimizer's hook fires in each step, as where torch.compile takes the whole step",
	ReasonInBackward: "the optimizer steps within backward",
	ReasonCompiled:   "the optimizer's step is compiled or capturable",
	ReasonUnknown:    "the optimizer is not one of torch's",
	ReasonClosure:    "a closure runs forward and backward within the optimizer's step",
}

// String returns the text for users. A newer client may have reasons that this version does not know.
func (r Reason) String() string {
	if words, ok := reasons[r]; ok {
		return words
	}
	return fmt.Sprintf("reason %d, unknown to this agent", uint32(r))
}

const (
	flagAttached  = 1
	flagRestored  = 2
	flagRestoring = 4
	flagGrouped   = 8
)

// Encode returns the client record.
func (c Client) Encode() []byte {
	b := newRecord(magicClient)
	var flags uint32
	if c.Attached {
		flags |= flagAttached
	}
	if c.Restored {
		flags |= flagRestored
	}
	if c.Restoring {
		flags |= flagRestoring
	}
	if c.Grouped {
		flags |= flagGrouped
	}
	le.PutUint32(b[12:], c.Slot)
	le.PutUint64(b[16:], c.Seq)
	le.PutUint64(b[24:], uint64(c.Generation))
	le.PutUint64(b[32:], c.Grant)
	le.PutUint64(b[40:], uint64(c.CopyStep))
	le.PutUint64(b[48:], c.Length)
	le.PutUint64(b[56:], uint64(c.Step))
	le.PutUint64(b[64:], uint64(c.RestoredStep))
	le.PutUint32(b[72:], c.PID)
	le.PutUint32(b[76:], flags)
	le.PutUint64(b[80:], c.Saves)
	le.PutUint64(b[88:], c.Skipped)
	le.PutUint64(b[96:], c.Needed)
	le.PutUint64(b[104:], c.Refused)
	le.PutUint64(b[112:], uint64(c.Branch))
	le.PutUint64(b[120:], uint64(c.OverlapStep))
	le.PutUint64(b[128:], c.OverlapGrant)
	le.PutUint64(b[136:], c.Dropped)
	le.PutUint64(b[144:], c.Blocking)
	le.PutUint32(b[152:], uint32(c.Reason))
	le.PutUint32(b[156:], c.Span)
	le.PutUint64(b[160:], c.Overlapped)
	return seal(b)
}

func decodeClientRecord(b []byte) (Client, error) {
	if err := check(b, magicClient); err != nil {
		return Client{}, err
	}
	flags := le.Uint32(b[76:])
	c := Client{
		Slot:         le.Uint32(b[12:]),
		Seq:          le.Uint64(b[16:]),
		Generation:   int64(le.Uint64(b[24:])),
		Grant:        le.Uint64(b[32:]),
		CopyStep:     int64(le.Uint64(b[40:])),
		Length:       le.Uint64(b[48:]),
		Step:         int64(le.Uint64(b[56:])),
		RestoredStep: int64(le.Uint64(b[64:])),
		PID:          le.Uint32(b[72:]),
		Attached:     flags&flagAttached != 0,
		Restored:     flags&flagRestored != 0,
		Restoring:    flags&flagRestoring != 0,
		Grouped:      flags&flagGrouped != 0,
		Saves:        le.Uint64(b[80:]),
		Skipped:      le.Uint64(b[88:]),
		Needed:       le.Uint64(b[96:]),
		Refused:      le.Uint64(b[104:]),
	}
	c.Branch = int64(le.Uint64(b[112:]))
	c.OverlapStep = int64(le.Uint64(b[120:]))
	c.OverlapGrant = le.Uint64(b[128:])
	c.Dropped = le.Uint64(b[136:])
	c.Blocking = le.Uint64(b[144:])
	c.Reason = Reason(le.Uint32(b[152:]))
	c.Span = le.Uint32(b[156:])
	c.Overlapped = le.Uint64(b[160:])
	return c, nil
}

// DecodeClient returns the newer complete record of a client page.
func DecodeClient(page []byte) (Client, error) {
	c, err := newer(page, decodeClientRecord, func(c Client) uint64 { return c.Seq })
	if err != nil {
		return Client{}, fmt.Errorf("client page: %w", err)
	}
	return c, nil
}
