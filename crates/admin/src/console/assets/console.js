// Keeps regions of a page fresh. An event names what has changed; the page is then loaded, and only regions of that name are replaced.
'use strict';
(() => {
  const regions = () => [...document.querySelectorAll('[data-live]')];
  const notice = document.getElementById('live');
  const news = document.getElementById('new');
  let source;
  let again;
  let late;
  let isBehind = false;
  let isLoading = false;
  let changed = new Set();

  // A region in which a person types, reads or selects stays as it is.
  const isUsed = (region) => {
    const selection = document.getSelection();
    const isSelected = selection && !selection.isCollapsed && selection.containsNode(region, true);
    return isSelected || region.contains(document.activeElement) || region.querySelector('details[open]');
  };

  const show = (isLive) => {
    if (isLive) late = clearTimeout(late);
    if (notice) notice.hidden = isLive;
    for (const region of regions()) region.classList.toggle('old', !isLive);
  };

  // Rows that a person reads do not move: those that are new are counted above them.
  const count = (page) => {
    const rows = (from) => [...from.querySelectorAll('[data-row]')].map((row) => row.dataset.row);
    const known = new Set(rows(document));
    const fresh = rows(page).filter((row) => !known.has(row)).length;
    news.hidden = !fresh;
    news.querySelector('strong').textContent = fresh;
  };

  const replace = (page, names) => {
    if (news && names.has(news.dataset.rows)) count(page);
    for (const region of regions()) {
      const name = region.dataset.live;
      const fresh = names.has(name) && page.querySelector(`[data-live="${name}"]`);
      if (!fresh || fresh.innerHTML === region.innerHTML) continue;
      if (isUsed(region)) changed.add(name);
      else region.replaceWith(document.importNode(fresh, true));
    }
  };

  const load = () => {
    if (isLoading || !changed.size || document.hidden) return;
    isLoading = true;
    const names = changed;
    changed = new Set();
    const request = new XMLHttpRequest();
    request.open('GET', location.href);
    request.responseType = 'document';
    request.timeout = 5000;
    request.setRequestHeader('oncegate-live', '1');
    request.onloadend = () => {
      isLoading = false;
      const isAnswered = request.status === 200 && request.response;
      if (isAnswered) replace(request.response, names);
      show(isAnswered && source.readyState === EventSource.OPEN);
    };
    request.send();
  };

  const open = () => {
    clearTimeout(again);
    source = new EventSource('/console/live');
    source.onopen = () => {
      show(true);
      // While no stream was open, anything may have changed.
      if (isBehind) changed = new Set([...regions().map((region) => region.dataset.live), news?.dataset.rows]);
      isBehind = false;
      load();
    };
    source.onmessage = (event) => {
      for (const name of event.data.split(' ')) changed.add(name);
      load();
    };
    source.onerror = () => {
      isBehind = true;
      if (source.readyState !== EventSource.CLOSED) {
        late ??= setTimeout(show, 10000, false);
        return;
      }
      // Too many are open. Those of pages that were left end within seconds.
      show(false);
      again = setTimeout(open, 5000);
    };
  };

  const close = () => {
    clearTimeout(again);
    isBehind = true;
    source.close();
  };

  document.addEventListener('keydown', (event) => {
    const isTyping = event.target.closest('input, textarea, select');
    if (event.key === '/' && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const box = document.getElementById('find');
      if (!box) return;
      event.preventDefault();
      box.focus();
    }
  });
  if (!(news || regions().length) || !window.EventSource) return;
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) close();
    else open();
  });
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => event.persisted && open());
  open();
})();
