package main

import (
	"io"
	"log/slog"
	"strings"
)

// logger writes JSON with the keys that holdfast-controller has: ts, level in lower case, msg.
func logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case len(groups) > 0:
		case a.Key == slog.TimeKey:
			a.Key = "ts"
		case a.Key == slog.LevelKey:
			return slog.String("level", strings.ToLower(a.Value.String()))
		}
		return a
	}}))
}
