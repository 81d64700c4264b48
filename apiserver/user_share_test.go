package apiserver

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
)

var (
	aList = &request.RequestInfo{IsResourceRequest: true, Verb: "list"}
	aGet  = &request.RequestInfo{IsResourceRequest: true, Verb: "get"}
)

// One user has at most so many requests at work, and fewer lists; another one's are his own.
func TestOneUsersShare(t *testing.T) {
	u := &userShare{most: 3, lists: 1, calm: 3, users: map[string]*atWork{}}
	begin := func(user string, info *request.RequestInfo) func() {
		t.Helper()
		_, end, err := u.begin(t.Context(), user, info)
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	waits := func(user string, n int) {
		t.Helper()
		eventually(t, "it waits", func() bool {
			u.mu.Lock()
			defer u.mu.Unlock()
			return len(u.users[user].waiting) == n
		})
	}
	ends := []func(){begin("storm", aList)}
	list := make(chan func())
	go func() { list <- begin("storm", aList) }()
	waits("storm", 1)
	ends = append(ends, begin("storm", aGet), begin("storm", aGet)) // a list that waits holds nobody up
	get := make(chan func())
	go func() { get <- begin("storm", aGet) }()
	waits("storm", 2)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := u.begin(ended, "storm", aGet); err == nil {
		t.Error("a request that is over is let in where there is no room")
	}
	crowded, calm, err := u.begin(t.Context(), "calm", aList)
	if err != nil || crowded {
		t.Errorf("another one is crowded: %t, %v", crowded, err)
	}

	ends[0]() // a list: the one that waits comes first
	ends = append(ends[1:], <-list)
	waits("storm", 1)
	ends[0]()
	ends = append(ends[1:], <-get)
	for _, end := range append(ends, calm) {
		end()
	}
	if len(u.users) != 0 {
		t.Errorf("users are remembered who ask nothing: %v", u.users)
	}
}

// Who asks for more at a time than he may is told so, and who does not, not.
func TestCrowdedShare(t *testing.T) {
	u := &userShare{most: 1, lists: 1, calm: 1, users: map[string]*atWork{}}
	crowded, end, err := u.begin(t.Context(), "storm", aGet)
	if err != nil || crowded {
		t.Fatalf("the first is crowded: %t, %v", crowded, err)
	}
	type begun struct {
		crowded bool
		end     func()
	}
	let := make(chan begun)
	for i := range 2 {
		go func() {
			crowded, end, err := u.begin(t.Context(), "storm", aGet)
			if err != nil {
				t.Error(err)
			}
			let <- begun{crowded, end}
		}()
		eventually(t, "it waits", func() bool {
			u.mu.Lock()
			defer u.mu.Unlock()
			return len(u.users["storm"].waiting) == i+1
		})
	}
	for _, want := range []bool{true, false} {
		end()
		b := <-let
		if end = b.end; b.crowded != want {
			t.Errorf("with others waiting: %t, it is crowded: %t", want, b.crowded)
		}
	}
	end()
}

// Nor is it free to have as much at work as one may all the time: others notice what is more than a few.
func TestManyAtWorkAreCrowded(t *testing.T) {
	u := &userShare{most: 4, lists: 4, calm: 2, users: map[string]*atWork{}}
	var ends []func()
	begin := func(want bool) {
		t.Helper()
		crowded, end, err := u.begin(t.Context(), "storm", aGet)
		if err != nil || crowded != want {
			t.Errorf("with %d at work: %t, %v", len(ends), crowded, err)
		}
		ends = append(ends, end)
	}
	for _, crowded := range []bool{false, false, true, true} {
		begin(crowded)
	}
	for _, end := range ends[:3] {
		end()
	}
	begin(false)
}
