package apiserver

import "slices"

// give notes an event that was put into result.
func (w *watcher) give(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, revision)
	w.forgetWritten()
}

// forgetWritten is called with mu held: of what upstream has taken only the last may not be written yet.
func (w *watcher) forgetWritten() {
	if written := len(w.out) - len(w.result) - 1; written > 0 {
		w.out = slices.Delete(w.out, 0, written)
	}
}

// holds is the revision of the oldest of what the watch holds because its client has not read it; 0: it holds nothing.
func (w *watcher) holds() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetWritten()
	held := w.out
	if !w.delivery.isWriting() { // what was taken is written
		held = held[len(held)-min(len(held), len(w.result)):]
	}
	for _, revision := range held {
		if revision != 0 {
			return revision
		}
	}
	return w.sending.Load()
}

// drop lets go of what upstream has not taken.
func (w *watcher) drop() {
	for {
		select {
		case <-w.result:
		default:
			return
		}
	}
}
