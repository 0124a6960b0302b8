package main

import (
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// Values of --logging-format.
const (
	logJSON = "json"
	logText = "text"
)

// logger writes a line for each record, in a format.
func logger(w io.Writer, format string) (logr.Logger, error) {
	options := []zap.Opts{zap.UseDevMode(false), zap.WriteTo(w)}
	switch format {
	case logJSON:
	case logText:
		options = append(options, zap.ConsoleEncoder())
	default:
		return logr.Discard(), fmt.Errorf("--logging-format=%q: use %s or %s", format, logJSON, logText)
	}
	return zap.New(options...), nil
}
