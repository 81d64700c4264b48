package apiserver

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// continueToken says where the next part of a list begins.
type continueToken struct {
	Version string `json:"v"`
	// Revision is that of the whole list, latestRevision for whatever is there
	// when the part is asked for.
	Revision int64 `json:"rv"`
	// After is the last key of the part before.
	After string `json:"after"`
	// Remaining counts what follows; -1 if nobody has counted.
	Remaining int64 `json:"remaining"`
}

const (
	continueVersion = "berth.dev/v1"
	latestRevision  = -1
)

func (c continueToken) encode() string {
	c.Version = continueVersion
	// A struct of strings and numbers always encodes.
	b, _ := json.Marshal(c)
	return base64.RawURLEncoding.EncodeToString(b)
}

func decodeContinue(s string) (continueToken, error) {
	var c continueToken
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err == nil && (c.Version != continueVersion || c.After == "" || c.Revision < latestRevision || c.Revision == 0) {
		err = fmt.Errorf("it is not one of this server's")
	}
	if err != nil {
		return c, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
	}
	return c, nil
}

// expired is the answer to a token whose state is no longer kept: it offers to
// go on from the same place in the latest state.
func (c continueToken) expired() error {
	c.Revision, c.Remaining = latestRevision, -1
	err := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve " +
		"the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that " +
		"were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	err.ErrStatus.ListMeta = metav1.ListMeta{Continue: c.encode()}
	return err
}

func listExpired() error {
	return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
}
