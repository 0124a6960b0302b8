package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// Pause is the image of a pod's sandbox: one program that sleeps and lets the
// kernel reap its children.
func Pause() (*Image, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("the dev cluster's pause program is written for amd64, this is %s", runtime.GOARCH)
	}
	return &Image{
		Name:       layout.PauseImage,
		Entrypoint: []string{"/pause"},
		User:       "65535:65535",
		Files:      []File{{Path: "/pause", Mode: 0o755, Content: pauseProgram()}},
	}, nil
}

// pauseCode is rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8) and then pause() for ever.
var pauseCode = []byte{
	0xb8, 13, 0, 0, 0, // mov eax, 13
	0xbf, 17, 0, 0, 0, // mov edi, 17
	0x48, 0x8d, 0x35, 0x13, 0, 0, 0, // lea rsi, [rip+19]: the data after the code
	0x31, 0xd2, // xor edx, edx
	0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
	0x0f, 0x05, // syscall
	0xb8, 34, 0, 0, 0, // mov eax, 34
	0x0f, 0x05, // syscall
	0xeb, 0xf7, // jmp to the mov before
}

// pauseProgram wraps pauseCode in the smallest ELF file that Linux runs.
func pauseProgram() []byte {
	const base, headers = 0x400000, 64 + 56
	action := make([]byte, 32)
	action[0] = 1 // SIG_IGN
	body := append(bytes.Clone(pauseCode), action...)
	size := uint64(headers + len(body))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), uint16(62), uint32(1), // executable, x86-64, version
		uint64(base + headers), uint64(64), uint64(0), // entry, program headers, sections
		uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), // load, readable and executable
		uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000),
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err) // fixed-size values into memory
		}
	}
	b.Write(body)
	return b.Bytes()
}
