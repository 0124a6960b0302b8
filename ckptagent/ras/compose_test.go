package ras

import (
	"fmt"
	"strings"
)

// answers are composed as src/ras/client_support.cc writes them (jsonWriteHeader, jsonStartCommunicator, jsonWriteRankData,
// jsonStartMissingRanks, jsonWriteMissingRank, jsonEndCommunicator, jsonWriteFooter).

// present is one of "ranks", with what its process has launched.
type present struct {
	rank, process int
	init, async   int
	launched      [5]uint64
}

// missing is one of "missing_ranks".
type missing struct {
	rank, process      int
	unresponsive, dead bool
}

type communicator struct {
	size    int
	present []present
	missing []missing
}

// composer writes the answers of one version.
type composer struct {
	strings.Builder
	version string
	// comma is after "nvml_dev" of missing ranks: 2.28.9 lacks it.
	comma string
}

func (c *composer) line(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// compose writes an answer. Process n runs on host 10.0.0.(n/8), as process 100 + n%8; a negative one is unknown.
func compose(version string, comms ...communicator) string {
	c := composer{version: version, comma: ","}
	if version == "2.28.9" {
		c.comma = ""
	}
	c.line("{\n  \"nccl_version\": %q,\n  \"cuda_runtime_version\": 13000,\n  \"cuda_driver_version\": 13000,", version)
	c.line("  \"timestamp\": \"2026-11-20 10:00:00\",\n  \"communicators_count\": %d,\n  \"communicators\": [", len(comms))
	for i, m := range comms {
		if i > 0 {
			c.line(",")
		}
		c.communicator(i, m)
	}
	c.line("\n  ],\n  \"ras\": {\n    \"collection_time_sec\": 0.004,\n    \"timeouts_count\": 0\n  }\n}")
	return c.String()
}

func (c *composer) communicator(i int, m communicator) {
	c.line("    {\n      \"hash\": \"0x4e0104c2022fa2f%x\",\n      \"secondary_hash\": \"0x2989420b68927728:0xa3489b479e521019\",", i)
	c.line("      \"size\": %d,\n      \"ranks_count\": %d,\n      \"missing_ranks_count\": %d,\n      \"ranks\": [", m.size, len(m.present), len(m.missing))
	for k, p := range m.present {
		if k > 0 {
			c.line(",")
		}
		c.process(p.rank, p.process)
		c.line("          \"nvml_dev\": %d,\n          \"status\": {", p.process&7)
		c.line("            \"init_state\": %d,\n            \"async_error\": %d,\n            \"finalize_called\": false,", p.init, p.async)
		c.line("            \"destroy_flag\": false,\n            \"abort_flag\": false\n          },\n          \"collective_counts\": {")
		for o, name := range []string{"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"} {
			fmt.Fprintf(c, "            %q: %d", name, p.launched[o])
			if o < 4 {
				fmt.Fprint(c, ",")
			}
			c.line("")
		}
		fmt.Fprint(c, "          }\n        }")
	}
	c.line("\n      ],\n      \"missing_ranks\": [")
	for k, p := range m.missing {
		if k > 0 {
			c.line(",")
		}
		c.process(p.rank, p.process)
		c.line("          \"nvml_dev\": %d%s\n          \"status\": {", p.process&7, c.comma)
		fmt.Fprintf(c, "            \"unresponsive\": %t,\n            \"considered_dead\": %t\n          }\n        }", p.unresponsive, p.dead)
	}
	fmt.Fprint(c, "\n      ]\n    }")
}

func (c *composer) process(rank, n int) {
	host, pid := fmt.Sprintf("10.0.0.%d", n/8), 100+n&7
	if n < 0 {
		host, pid = "unknown", -1
	}
	c.line("        {\n          \"rank\": %d,\n          \"host\": %q,\n          \"pid\": %d,\n          \"cuda_dev\": %d,", rank, host, pid, n&7)
}

// ranks are ranks 0 to n-1 of a communicator of the processes from first on, step apart. All have launched the same.
func ranks(n, first, step int) (out []present) {
	for i := range n {
		out = append(out, present{rank: i, process: first + i*step, launched: [5]uint64{1, 0, 40, 40, 7}})
	}
	return out
}
