// Package pullrecords keeps, on a node's disk, which images its worker has fetched and whose credentials a registry took for them. By that it says whether a pod
// may use an image that is here already, or has to show the registry its own credentials first: an image is not for everybody because somebody could fetch it.
//
// Where it does not know, the registry is asked again. It must never let a pod use an image because a record could not be written, read or found: an image of which
// nothing is known is anybody's only where nothing has been fetched under its name. What credentials say is not kept, only a hash of it.
package pullrecords
