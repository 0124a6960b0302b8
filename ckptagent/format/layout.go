package format

// Version is the format's version, which every record has.
const Version = 1

// Sizes and offsets that do not depend on the state.
const (
	// PageSize is the unit of the layout and of its alignment.
	PageSize = 4096
	// Slots is the default number of slots in an arena: two sealed ones and a spare one being written.
	Slots = 3
	// MinSlots is the least: one for the newest common step and one for the next step.
	MinSlots = 2
	// RecordSize is the size of one record, with its checksum. Records are at least this far apart.
	RecordSize = 256
	// MetaBytes is the size of an arena before its data; Open requires exactly that.
	MetaBytes = 8 * PageSize

	// HeaderOffset, ControlOffset and ClientOffset are where those pages start.
	HeaderOffset  = 0
	ControlOffset = PageSize
	ClientOffset  = 2 * PageSize

	slotHeaderOffset = 3 * PageSize
	secondRecord     = PageSize / 2
)

// NoSlot is the slot number for none.
const NoSlot = ^uint32(0)

// Stride returns the distance between the data of two slots: stateBytes rounded up to a page.
func Stride(stateBytes uint64) uint64 {
	return (stateBytes + PageSize - 1) / PageSize * PageSize
}

// FileSize returns the size of an arena of that many slots of stateBytes each.
func FileSize(stateBytes uint64, slots uint32) uint64 {
	return MetaBytes + uint64(slots)*Stride(stateBytes)
}

// SlotHeaderOffset returns where the header of a slot starts.
func SlotHeaderOffset(slot uint32) int64 {
	return slotHeaderOffset + int64(slot)*PageSize
}

// DataOffset returns where the data of a slot starts.
func DataOffset(slot uint32, stateBytes uint64) int64 {
	return MetaBytes + int64(uint64(slot)*Stride(stateBytes))
}
