package ask

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// zeros is a body without an end.
type zeros struct{ read int }

func (z *zeros) Read(p []byte) (int, error) {
	clear(p)
	z.read += len(p)
	return len(p), nil
}

func preview(body io.Reader) *http.Request {
	r := httptest.NewRequest("POST", "https://x"+v1alpha1.PreviewPath, body)
	r.Header.Set(v1alpha1.PreviewTokenHeader, "good")
	return r
}

// TestQuestionsThatAreTooLarge: a body whose declared size is too large is not read. Of any other body at most its declared size, or the
// limit, is read.
func TestQuestionsThatAreTooLarge(t *testing.T) {
	for name, c := range map[string]struct {
		length int64
		most   int
		says   string
	}{
		"it says so":          {maxBytes + 1, 0, "67108865 bytes, 67108864 at most"},
		"it says less":        {10, 64 << 10, "too large"},
		"it says nothing":     {-1, maxBytes + 1<<20, "too large"},
		"it says that it has": {int64(len(onePod)) - 1, 64 << 10, "too large"},
	} {
		body := &zeros{}
		r := preview(body)
		r.ContentLength = c.length
		w := httptest.NewRecorder()
		handler(&scheduler{}).ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), c.says) || body.read > c.most {
			t.Errorf("%s: %d of %d bytes are read, code %d: %s", name, body.read, c.most, w.Code, w.Body)
		}
	}
}

// TestQuestionsAreReadWithinAllBytes: while the bodies that are being read use up the limit for all bodies, the next query waits, at most
// for the timeout. It is answered once there is room.
func TestQuestionsAreReadWithinAllBytes(t *testing.T) {
	h := handler(&scheduler{})
	done := make(chan int, allBytes/maxBytes)
	var senders []*io.PipeWriter
	for range allBytes / maxBytes {
		body, sends := io.Pipe()
		r := preview(body)
		r.ContentLength = -1 // the body may have any size
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			done <- w.Code
		}()
		if _, err := sends.Write([]byte("{")); err != nil { // it is being read
			t.Fatal(err)
		}
		senders = append(senders, sends)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, preview(strings.NewReader(onePod)).WithContext(ctx))
	if w.Code != http.StatusGatewayTimeout || !strings.Contains(w.Body.String(), "try again") {
		t.Errorf("beyond all that may be read at a time: code %d: %s", w.Code, w.Body)
	}
	for _, s := range senders {
		_ = s.CloseWithError(errors.New("gone"))
		if code := <-done; code != http.StatusBadRequest {
			t.Errorf("a question that breaks off: code %d", code)
		}
	}
	w = httptest.NewRecorder()
	if h.ServeHTTP(w, preview(strings.NewReader(onePod))); w.Code != http.StatusOK {
		t.Errorf("once there is room: code %d: %s", w.Code, w.Body)
	}
	if !h.bodies.TryAcquire(allBytes) {
		t.Error("a question that was answered keeps its room")
	}
}

// deadlines is a connection that records its read deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	read time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = at
	return nil
}

// TestQuestionsAreReadInTime: reading of a slow body ends after readTime.
func TestQuestionsAreReadInTime(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	before := time.Now()
	handler(&scheduler{}).ServeHTTP(w, preview(strings.NewReader(onePod)))
	if early, late := before.Add(readTime), time.Now().Add(readTime); w.read.Before(early) || w.read.After(late) {
		t.Errorf("it is read until %s, not between %s and %s", w.read, early, late)
	}
}
