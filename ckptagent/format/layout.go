package format

// Version of the format; every record carries it.
const Version = 1

// Sizes and places that do not depend on the state.
const (
	// PageSize is the unit of the layout and of its alignment.
	PageSize = 4096
	// Slots is the default number of slots in an arena: two sealed ones and a spare one being written.
	Slots = 3
	// MinSlots is the least: the newest common step and a slot to write the next one in.
	MinSlots = 2
	// RecordSize is the size of one record, checksum included. Places of records are this far apart at least.
	RecordSize = 256
	// MetaBytes is how much of an arena precedes its data; Open wants to see exactly that.
	MetaBytes = 8 * PageSize

	// HeaderOffset, ControlOffset and ClientOffset are where those pages start.
	HeaderOffset  = 0
	ControlOffset = PageSize
	ClientOffset  = 2 * PageSize

	slotHeaderOffset = 3 * PageSize
	secondRecord     = PageSize / 2
)

// NoSlot is the slot number that means none.
const NoSlot = ^uint32(0)

// Stride is the distance between the data of two slots: stateBytes rounded up to a page.
func Stride(stateBytes uint64) uint64 {
	return (stateBytes + PageSize - 1) / PageSize * PageSize
}

// FileSize is the size of an arena with so many slots, which hold stateBytes each.
func FileSize(stateBytes uint64, slots uint32) uint64 {
	return MetaBytes + uint64(slots)*Stride(stateBytes)
}

// SlotHeaderOffset is where the header of a slot starts.
func SlotHeaderOffset(slot uint32) int64 {
	return slotHeaderOffset + int64(slot)*PageSize
}

// DataOffset is where the data of a slot starts.
func DataOffset(slot uint32, stateBytes uint64) int64 {
	return MetaBytes + int64(uint64(slot)*Stride(stateBytes))
}
