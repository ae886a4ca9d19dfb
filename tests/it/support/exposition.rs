//! Parser of the output of `/metrics`.

use oncegate_testkit::client::Client;

/// A page of metrics in Prometheus' text format.
pub(crate) struct Page(pub(crate) String);

impl Page {
    /// The present state of the page.
    pub(crate) async fn get(admin: &Client) -> Self {
        let answer = admin.get("/metrics").await.expect(200);
        assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
        Self(answer.text)
    }

    /// All series of this name, each as its labels and its value.
    pub(crate) fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (Vec<(&'a str, &'a str)>, &'a str)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels.split("\",").filter_map(label).collect(), value))
        })
    }

    /// The sum over all series of this name that have these labels; 0 if there are none. For what counts in whole ones.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let matching = self.series(name).filter(|(own, _)| labels.iter().all(|label| own.contains(label)));
        matching.map(|(_, value)| value.parse::<u64>().expect("a whole number")).sum()
    }

    /// Every label and value on the page, sorted, each once.
    pub(crate) fn labels(&self) -> std::collections::BTreeSet<(String, String)> {
        let samples = self.0.lines().filter(|line| !line.starts_with('#'));
        let labels = samples.filter_map(|line| Some(line.split_once('{')?.1.rsplit_once("} ")?.0));
        let pairs = labels.flat_map(|labels| labels.split("\",").filter_map(label));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// One `name="value`, with or without the closing quote. No label of ours holds a quote or a backslash.
fn label(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once("=\"")?;
    Some((name, value.trim_end_matches('"')))
}
