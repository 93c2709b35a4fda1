//! Who asks, as far as the queue is concerned.

use std::future::Future;
use std::net::IpAddr;

use hyper::Request;
use hyper::service::Service;

tokio::task_local! {
    /// Who sent the request that this task answers.
    static CURRENT: Client;
}

/// One of those that wait in turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client(pub(crate) u64);

impl Client {
    /// Of the request that this task answers; work of the server's own is one client's.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(|client| *client).unwrap_or_default()
    }

    /// Answers a request of this client.
    pub(crate) async fn scope<T>(self, answer: impl Future<Output = T>) -> T {
        CURRENT.scope(self, answer).await
    }

    /// Whoever shows the key of that number.
    pub(crate) fn of_key(number: usize) -> Self {
        Self(number as u64)
    }

    /// Whoever asks from that address. Of IPv6 a network counts: a client has as many addresses in it as it likes.
    pub(crate) fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(0xffff_0000_0000 | u64::from(address.to_bits())),
            IpAddr::V6(address) => Self((address.to_bits() >> 64) as u64),
        }
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// A service that tells each request of a connection where it comes from.
#[derive(Clone)]
pub(crate) struct FromPeer<S> {
    pub(crate) service: S,
    pub(crate) peer: Peer,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for FromPeer<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.service.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let client = |address: &str| Client::of_address(address.parse().unwrap());
        assert_eq!(client("10.0.0.1"), client("::ffff:10.0.0.1"));
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
        assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff::9"));
        assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
        assert_ne!(client("127.0.0.1"), client("::1"));
    }
}
