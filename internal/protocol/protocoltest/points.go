// Package protocoltest builds values of package protocol for tests.
package protocoltest

import "holdfast.dev/holdfast/internal/protocol"

// FirstBranch returns steps of branch 0.
func FirstBranch(steps ...int64) []protocol.Point {
	var points []protocol.Point
	for _, step := range steps {
		points = append(points, protocol.Point{Step: step})
	}
	return points
}
