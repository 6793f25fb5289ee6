//! Lookups of datagram services, and the requests for those of this process.

use std::time::Instant;

use mitra_os_util::random::random_u64;
use mitra_verbs::Gid;
use nix::errno::Errno;

use super::connections::MAX_REFUSED;
use crate::rails::cm_receiver::{Endpoint, RailAddress};
use crate::rdmacm::cm_event::{CmEvent, IdHandle};
use crate::rdmacm::identifier::{Lookup, NetworkState, ServiceOrigin, ServiceRequest};
use crate::rdmacm::manager_state::ManagerState;
use crate::rdmacm::network::PeerPath;
use crate::rdmacm::protocol::message::{Message, Service, SidrReply, SidrRequest, Transaction, sidr_status};
use crate::rdmacm::protocol::service_lookup::{ReceivedRequest, ServiceLookup};
use crate::rdmacm::rdma_port::errno_of;
use crate::rdmacm::refusals::Refusals;
use crate::rdmacm::service_directory::Answer;
use crate::rdmacm::unreachable;
use mitra_verbs_abi::RDMA_CM_EVENT_UNREACHABLE;

impl ManagerState {
    /// Starts a lookup for an identifier. The SIDR_REQ is sent when the destination's device is
    /// known.
    ///
    /// # Errors
    /// The error of the system's random source.
    pub fn look_up(
        &mut self,
        handle: IdHandle,
        service: Service,
        private_data: Vec<u8>,
        now: Instant,
    ) -> Result<(), Errno> {
        let random = || random_u64().map_err(errno_of);
        let (mut request_id, transaction) = (random()? as u32, random()?);
        while self.lookups.contains_key(&request_id) {
            request_id = random()? as u32;
        }
        let request = SidrRequest { request_id, service, private_data };
        let lookup = ServiceLookup::new(request_id, transaction, now);
        self.get(handle)?.network = NetworkState::LookingUp(Box::new(Lookup {
            lookup,
            request,
            path: None,
            refusals: Refusals::default(),
        }));
        self.lookups.insert(request_id, handle);
        self.locate(handle, &service, now);
        Ok(())
    }

    /// As [`on_located_connection`](Self::on_located_connection).
    pub(super) fn on_located_service(
        &mut self,
        handle: IdHandle,
        answer: Answer,
        now: Instant,
    ) -> Option<Service> {
        let is_up = self.network.as_ref()?.is_up();
        let NetworkState::LookingUp(lookup) = &mut self.identifiers.get_mut(&handle)?.network else {
            return None;
        };
        let service = lookup.request.service;
        let (gid, endpoint) = match answer {
            Answer::Device(gid, endpoints) => {
                (gid, endpoints.reached_from(self.network.as_ref()?.endpoints()))
            }
            Answer::Unknown => (Gid::from(service.destination.ip()), Endpoint::QueuePair1),
            Answer::NobodyListens if is_up && lookup.lookup.is_refusal_final(now) => {
                self.end_lookup(handle, unsupported());
                return None;
            }
            Answer::NobodyListens => return Some(service),
        };
        lookup.path = PeerPath::new(gid, endpoint).ok();
        if unreachable::is_out_of_reach(self.network.as_ref()?, gid, &service) {
            self.fail_lookup(handle, Errno::ENETUNREACH);
            return None;
        }
        lookup.lookup.request(lookup.request.clone(), now);
        self.on_lookup_timer(handle, now);
        None
    }

    pub(super) fn on_lookup_timer(&mut self, handle: IdHandle, now: Instant) {
        let Some(identifier) = self.identifiers.get_mut(&handle) else { return };
        let NetworkState::LookingUp(lookup) = &mut identifier.network else { return };
        let Lookup { lookup, path, refusals, .. } = &mut **lookup;
        let Some(network) = &self.network else { return };
        let is_refused = path.as_ref().is_some_and(|path| {
            refusals.count(network, network.decisive_addresses(path)) >= MAX_REFUSED
                && lookup.is_refusal_final(now)
        });
        if is_refused {
            self.end_lookup(handle, unsupported());
        } else if lookup.is_timed_out(now) {
            self.fail_lookup(handle, Errno::ETIMEDOUT);
        } else if let (Some(outgoing), Some(path)) = (lookup.next_message(now), path) {
            network.send(&outgoing, path);
        }
    }

    pub(super) fn on_service_reply(&mut self, device: Gid, reply: SidrReply, now: Instant) {
        let Some(handle) = self.lookups.get(&reply.request_id).copied() else { return };
        if let Ok(NetworkState::LookingUp(lookup)) = self.get(handle).map(|identifier| &identifier.network)
            && lookup.lookup.accepts(&reply, now)
        {
            self.end_lookup(handle, CmEvent::ServiceReplied(reply, device.0));
        }
    }

    fn fail_lookup(&mut self, handle: IdHandle, errno: Errno) {
        let device = match self.get(handle).map(|identifier| &identifier.network) {
            Ok(NetworkState::LookingUp(lookup)) => lookup.path.as_ref().map(|path| path.gid),
            _ => None,
        };
        self.explain_unreachable(handle, device, errno);
        self.end_lookup(handle, CmEvent::Failed(RDMA_CM_EVENT_UNREACHABLE, errno));
    }

    fn end_lookup(&mut self, handle: IdHandle, event: CmEvent) {
        self.close(handle);
        self.push_event(handle, event);
    }

    pub(super) fn on_service_request(
        &mut self,
        from: RailAddress,
        device: Gid,
        transaction: u64,
        request: SidrRequest,
        now: Instant,
    ) {
        let key = (device, request.request_id);
        let origin = ServiceOrigin { key, from, transaction };
        match self.service_requests.receive(key, now) {
            ReceivedRequest::New => match self.listener_of(&request.service) {
                Some(listener) if self.backlog_has_room(listener) => {
                    let Ok(identifier) = self.get(listener) else { return };
                    let mut child = identifier.child(listener);
                    let Service { source, destination, .. } = request.service;
                    child.addresses = (Some(destination), Some(source));
                    child.network = NetworkState::ServiceRequested(origin);
                    child.service_request =
                        Some(ServiceRequest { gid: device.0, private_data: request.private_data });
                    let child = self.insert(child);
                    self.push_event(listener, CmEvent::Requested { child });
                }
                // The request is forgotten, so that the next repetition counts as a new request.
                Some(_) => self.service_requests.remove(key),
                None => {
                    self.service_requests.remove(key);
                    let reply = SidrReply::refusal(request.request_id, sidr_status::UNSUPPORTED, Vec::new());
                    self.send_service_reply(origin, reply);
                }
            },
            ReceivedRequest::Answered(reply) => self.send_service_reply(origin, reply),
            ReceivedRequest::Ignored => {}
        }
    }

    /// Closes the service request of an identifier, sends the reply, and stores it for repetitions
    /// of the request.
    ///
    /// # Errors
    /// `EINVAL` if the identifier was removed.
    pub fn answer_service_request(
        &mut self,
        handle: IdHandle,
        origin: ServiceOrigin,
        reply: SidrReply,
    ) -> Result<(), Errno> {
        self.get(handle)?.network = NetworkState::Closed;
        self.service_requests.reply(origin.key, reply.clone(), Instant::now());
        self.send_service_reply(origin, reply);
        Ok(())
    }

    pub(super) fn refuse_service_request(&mut self, origin: ServiceOrigin, now: Instant) {
        let reply = SidrReply::refusal(origin.key.1, sidr_status::REJECTED, Vec::new());
        self.service_requests.reply(origin.key, reply.clone(), now);
        self.send_service_reply(origin, reply);
    }

    fn send_service_reply(&self, origin: ServiceOrigin, reply: SidrReply) {
        if let Some(network) = &self.network {
            let transaction = Transaction { id: origin.transaction, message: Message::SidrRep(reply) };
            network.send_to(origin.from, &transaction);
        }
    }
}

/// The event of a lookup of a service that nobody offers.
fn unsupported() -> CmEvent {
    CmEvent::ServiceReplied(SidrReply::refusal(0, sidr_status::UNSUPPORTED, Vec::new()), [0; 16])
}
