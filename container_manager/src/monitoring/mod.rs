//! What operators look at: Prometheus metrics, and a status page. Both are read-only, and neither has anything that a container
//! has written.

pub mod door;
mod hosts;
mod page;
pub mod series;
mod snapshot;

use std::sync::Arc;

use crate::config::Config;
use crate::images::Images;
use crate::metrics::{Metrics, write_process_metrics};
use crate::pool::Pool;
use door::{Answer, Page};
use hosts::Hosts;
use snapshot::Snapshot;
use tokio::net::TcpListener;

/// All metrics in Prometheus' text format.
pub fn write_metrics(pool: &Pool, images: &Images, config: &Config) -> String {
    write_all(&Snapshot::take(pool, images, config), pool.metrics())
}

fn write_all(snapshot: &Snapshot, metrics: &Metrics) -> String {
    let mut text = String::new();
    snapshot.write(metrics, &mut text);
    metrics.write(&mut text);
    write_process_metrics(&mut text);
    text
}

/// Serves metrics and status page until the listener fails; for ever without one.
pub async fn serve(listener: Option<TcpListener>, pool: Arc<Pool>, images: Arc<Images>, config: Arc<Config>) {
    let Some(listener) = listener else { return std::future::pending().await };
    let Ok(address) = listener.local_addr() else { return std::future::pending().await };
    let hosts = Hosts::new(address.ip(), config.metrics_hosts.clone());
    let answer: Answer = Arc::new(move |page| {
        let snapshot = Snapshot::take(&pool, &images, &config);
        let text = write_all(&snapshot, pool.metrics());
        match page {
            Page::Metrics => text,
            Page::Status => page::render(&snapshot, &text),
        }
    });
    door::serve(listener, hosts, answer).await;
}
