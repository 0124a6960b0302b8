package main

import (
	"io"
	"log/slog"
	"strings"
)

// Values of --logging-format.
const (
	logJSON = "json"
	logText = "text"
)

// logger writes a line for each record, as JSON or text, with the keys that holdfast-controller has: ts, level in lower case, msg.
func logger(w io.Writer, format string) *slog.Logger {
	options := &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case len(groups) > 0:
		case a.Key == slog.TimeKey:
			a.Key = "ts"
		case a.Key == slog.LevelKey:
			return slog.String("level", strings.ToLower(a.Value.String()))
		}
		return a
	}}
	if format == logText {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
